#include <cmath>

#include "backends/cpu/for_rows.h"
#include "backends/cpu/ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "backends/cpu/math-inl.h"
#include "backends/cpu/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {

// 1 / sqrt(mean(x^2) + eps): one accumulator over ascending lanes, whatever surrounds the row.
HWY_INLINE float InverseRms(const float* x, int64_t D, float eps) {
  const hn::ScalableTag<float> d;
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < D; i += hn::Lanes(d)) {
    const auto v = LoadUpTo(d, x + i, D - i);
    sum = hn::MulAdd(v, v, sum);
  }
  const double mean = hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<double>(D);
  return static_cast<float>(1.0 / std::sqrt(mean + eps));
}

void RmsNormRow(const float* x, const float* w, int64_t D, float eps, float centre, float* out) {
  const hn::ScalableTag<float> d;
  const auto inverse = hn::Set(d, InverseRms(x, D, eps));
  for (int64_t i = 0; i < D; i += hn::Lanes(d)) {
    const auto scale = hn::Add(hn::Set(d, centre), LoadUpTo(d, w + i, D - i));
    StoreUpTo(d, hn::Mul(hn::Mul(LoadUpTo(d, x + i, D - i), inverse), scale), out + i, D - i);
  }
}

void GatedRmsNormRow(const float* x, const float* z, const float* w, int64_t V, float eps, float* out) {
  const hn::ScalableTag<float> d;
  const auto inverse = hn::Set(d, InverseRms(x, V, eps));
  for (int64_t i = 0; i < V; i += hn::Lanes(d)) {
    const auto normed = hn::Mul(hn::Mul(LoadUpTo(d, x + i, V - i), inverse), LoadUpTo(d, w + i, V - i));
    StoreUpTo(d, hn::Mul(normed, Silu(d, LoadUpTo(d, z + i, V - i))), out + i, V - i);
  }
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaring::cpu {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(GatedRmsNormRow);

void rms_norm(const RmsNormArgs& args, Stream& stream) {
  check(args);
  const int64_t rows = args.x.shape[0], groups = args.x.shape[1], D = args.x.shape[2];
  for_rows(stream, rows, groups * D, [&](int64_t r) {
    for (int64_t g = 0; g < groups; g++) {
      HWY_DYNAMIC_DISPATCH(RmsNormRow)
      (args.x.f32(r, g), args.w, D, args.eps, args.zero_centred ? 1.0f : 0.0f, args.out.f32(r, g));
    }
  });
}

void gated_rms_norm(const GatedRmsNormArgs& args, Stream& stream) {
  check(args);
  const int64_t tokens = args.x.shape[0], Hv = args.x.shape[1], V = args.x.shape[2];
  for_rows(stream, tokens, Hv * V, [&](int64_t t) {
    for (int64_t h = 0; h < Hv; h++) {
      HWY_DYNAMIC_DISPATCH(GatedRmsNormRow)
      (args.x.f32(t, h), args.z.f32(t, h), args.w, V, args.eps, args.out.f32(t, h));
    }
  });
}

}  // namespace deltaring::cpu
#endif
