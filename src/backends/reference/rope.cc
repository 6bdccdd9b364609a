#include <cmath>

#include "backends/reference/ops.h"

namespace deltaring::reference {

void rope(const RopeArgs& args, Stream&) {
  check(args);
  const int64_t heads = args.x.shape[1], half = args.rotary / 2;
  for (int32_t b = 0; b < args.rows.count; b++) {
    if (args.rows.seat[b] < 0) continue;
    for (int32_t t = args.rows.start[b]; t < args.rows.start[b + 1]; t++) {
      const double position = static_cast<double>(args.rows.first[b] + t - args.rows.start[b]);
      for (int64_t i = 0; i < half; i++) {
        const double of_theta = std::pow(args.theta, -2.0 * static_cast<double>(i) / static_cast<double>(args.rotary));
        const double angle = position * (args.frequency ? args.frequency[i] : of_theta);
        const double c = args.amplitude * std::cos(angle), s = args.amplitude * std::sin(angle);
        for (int64_t h = 0; h < heads; h++) {
          float *low = args.x.f32(t, h, i), *high = args.x.f32(t, h, i + half);
          const double a = *low, b = *high;
          *low = static_cast<float>(a * c - b * s);
          *high = static_cast<float>(b * c + a * s);
        }
      }
    }
  }
}

}  // namespace deltaring::reference
