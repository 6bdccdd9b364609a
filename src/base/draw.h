// Drawing an id from unnormalised weights with one coin.
#pragma once
#include <cmath>
#include <cstdint>

namespace deltaring {

// The id where the running sum of weight(id), id in [0, count), first exceeds u times the total, u in [0, 1). Weights
// that are 0, negative or NaN are never drawn; -1 when the total is not above `least` or is infinite. Two passes in one
// order, so that the sums agree; in double.
template <class Weight>
int32_t draw(int64_t count, double u, double least, const Weight& weight) {
  double mass = 0;
  for (int64_t id = 0; id < count; id++) {
    if (const double w = weight(id); w > 0) mass += w;
  }
  if (!(mass > least) || std::isinf(mass)) return -1;
  double sum = 0;
  int64_t last = -1;
  for (int64_t id = 0; id < count; id++) {
    const double w = weight(id);
    if (!(w > 0)) continue;
    last = id;
    sum += w;
    if (sum > u * mass) break;
  }
  return static_cast<int32_t>(last);
}

// A draw from p [vocab], which need not sum to 1; -1 when no entry is positive or the sum is infinite.
inline int32_t sample(const float* p, int64_t vocab, double u) {
  return draw(vocab, u, 0, [=](int64_t id) { return double{p[id]}; });
}

}  // namespace deltaring
