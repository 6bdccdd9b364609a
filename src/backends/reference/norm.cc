#include <cmath>

#include "backends/reference/ops.h"

namespace deltaring::reference {

namespace {

// 1 / sqrt(mean(x^2) + eps)
double inverse_rms(const float* x, int64_t D, float eps) {
  double sum = 0;
  for (int64_t i = 0; i < D; i++) sum += double{x[i]} * x[i];
  return 1.0 / std::sqrt(sum / static_cast<double>(D) + eps);
}

}  // namespace

void rms_norm(const RmsNormArgs& args, Stream&) {
  check(args);
  const auto [rows, groups, D] = args.x.shape;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t g = 0; g < groups; g++) {
      const float* x = args.x.f32(r, g);
      float* out = args.out.f32(r, g);
      const double inverse = inverse_rms(x, D, args.eps);
      for (int64_t i = 0; i < D; i++) {
        const double scale = args.zero_centred ? 1.0 + args.w[i] : args.w[i];
        out[i] = static_cast<float>(x[i] * inverse * scale);
      }
    }
  }
}

void gated_rms_norm(const GatedRmsNormArgs& args, Stream&) {
  check(args);
  const auto [tokens, Hv, V] = args.x.shape;
  for (int64_t t = 0; t < tokens; t++) {
    for (int64_t h = 0; h < Hv; h++) {
      const float* x = args.x.f32(t, h);
      const float* z = args.z.f32(t, h);
      float* out = args.out.f32(t, h);
      const double inverse = inverse_rms(x, V, args.eps);
      for (int64_t i = 0; i < V; i++) {
        const double gate = z[i] / (1.0 + std::exp(-double{z[i]}));
        out[i] = static_cast<float>(x[i] * inverse * args.w[i] * gate);
      }
    }
  }
}

}  // namespace deltaring::reference
