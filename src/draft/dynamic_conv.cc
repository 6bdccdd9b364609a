#include "draft/dynamic_conv.h"

#include <algorithm>

#include "base/error.h"

namespace deltaring {

void dynamic_conv(const DynamicConvArgs& a) {
  const int64_t H = a.x.shape[1], G = H / a.group, side = static_cast<int64_t>(a.side);
  check(a.rows.tokens() == a.x.shape[0] && a.out.shape == a.x.shape, "dynamic_conv: x [tokens, H] is [{}, {}]",
        a.x.shape[0], H);
  check(a.group >= 1 && H % a.group == 0 && a.dynamic.shape[0] == a.x.shape[0] && a.dynamic.shape[1] == 2 * a.taps * G,
        "dynamic_conv: dynamic [tokens, 2 taps G] has {} columns for H = {}, group {}, {} taps", a.dynamic.shape[1], H,
        a.group, a.taps);
  for (int32_t b = 0; b < a.rows.count; b++) {
    for (int64_t t = a.rows.start[b]; t < a.rows.start[b + 1]; t++) {
      float* out = a.out.f32(t);
      if (!a.accumulate) std::fill_n(out, H, 0.0f);
      for (int64_t o = 0; o < a.taps && t - o >= a.rows.start[b]; o++) {
        const float* x = a.x.f32(t - o);
        const float* base = a.base + (side * a.taps + o) * H;
        const float* dynamic = a.dynamic.f32(t, (side * a.taps + o) * G);
        for (int64_t g = 0; g < G; g++) {
          for (int64_t c = g * a.group; c < (g + 1) * a.group; c++) out[c] += (base[c] + dynamic[g]) * x[c];
        }
      }
    }
  }
}

}  // namespace deltaring
