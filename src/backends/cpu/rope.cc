#include <cmath>
#include <vector>

#include "backends/cpu/for_rows.h"
#include "backends/cpu/ops.h"

namespace deltaring::cpu {

namespace {

struct Rotation {
  float cos, sin;
};

// Pairs (low[i], high[i]) turned by their angles.
void rotate(float* low, float* high, const std::vector<Rotation>& rotations) {
  for (const auto [c, s] : rotations) {
    const float a = *low, b = *high;
    *low++ = a * c - b * s;
    *high++ = b * c + a * s;
  }
}

}  // namespace

void rope(const RopeArgs& args, Stream& stream) {
  check(args);
  const int64_t tokens = args.x.shape[0], heads = args.x.shape[1], half = args.rotary / 2;
  std::vector<double> frequency(half);
  for (int64_t i = 0; i < half; i++) {
    frequency[i] = args.frequency
                       ? args.frequency[i]
                       : std::pow(args.theta, -2.0 * static_cast<double>(i) / static_cast<double>(args.rotary));
  }
  std::vector<int64_t> position(tokens, -1);  // -1: its row has no seat
  for (int32_t b = 0; b < args.rows.count; b++) {
    if (args.rows.seat[b] < 0) continue;
    for (int32_t i = 0; i < args.rows.length(b); i++) position[args.rows.start[b] + i] = args.rows.first[b] + i;
  }
  constexpr int64_t kSinCos = 30;  // work of one rotation in operations of for_rows
  for_rows(stream, tokens, half * (kSinCos + heads), [&](int64_t t) {
    if (position[t] < 0) return;
    std::vector<Rotation> rotations(half);  // shared by the heads
    for (int64_t i = 0; i < half; i++) {
      const double angle = static_cast<double>(position[t]) * frequency[i];
      rotations[i] = {.cos = static_cast<float>(args.amplitude * std::cos(angle)),
                      .sin = static_cast<float>(args.amplitude * std::sin(angle))};
    }
    for (int64_t h = 0; h < heads; h++) rotate(args.x.f32(t, h), args.x.f32(t, h, half), rotations);
  });
}

}  // namespace deltaring::cpu
