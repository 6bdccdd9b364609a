#include "spec/accept.h"

#include "base/draw.h"
#include "base/error.h"
#include "base/rng.h"

namespace deltaring {

namespace {

constexpr double kLeastResidual = 1e-8;  // below this p - q is the rounding of p and q, not a law

// A draw from what p has over q.
int32_t draw_residual(const float* p, const float* q, int64_t vocab, double u) {
  const int32_t id =
      draw(vocab, u, kLeastResidual, [=](int64_t i) { return double{p[i]} - (q[i] > 0 ? double{q[i]} : 0.0); });
  return id >= 0 ? id : sample(p, vocab, u);
}

}  // namespace

Verdict accept_greedy(std::span<const int32_t> drafts, std::span<const int32_t> target) {
  check(target.size() == drafts.size() + 1, "accept_greedy: target has {} rows for {} drafts; [m+1] = {} is needed",
        target.size(), drafts.size(), drafts.size() + 1);
  size_t a = 0;
  while (a < drafts.size() && drafts[a] >= 0 && drafts[a] == target[a]) a++;
  return {static_cast<int32_t>(a), target[a]};
}

Verdict accept_sampled(std::span<const int32_t> drafts, const float* q, const float* p, int64_t vocab, uint64_t seed,
                       int64_t position) {
  check(p != nullptr && vocab > 0, "accept_sampled: p [m+1, vocab] is needed with vocab > 0; vocab is {}", vocab);
  const auto m = static_cast<int32_t>(drafts.size());
  for (int32_t i = 0; i < m; i++, p += vocab) {
    const int32_t d = drafts[i];
    const double u = uniform(seed, position + i, Coin::residual);
    if (!q) {
      const int32_t own = sample(p, vocab, u);
      if (own == d) continue;
      return {i, own};
    }
    const float* q_i = q + i * vocab;
    const bool drawn = d >= 0 && d < vocab && q_i[d] > 0;
    if (drawn && uniform(seed, position + i, Coin::accept) * q_i[d] < double{p[d]}) continue;
    return {i, drawn ? draw_residual(p, q_i, vocab, u) : sample(p, vocab, u)};
  }
  return {m, sample(p, vocab, uniform(seed, position + m, Coin::residual))};
}

}  // namespace deltaring
