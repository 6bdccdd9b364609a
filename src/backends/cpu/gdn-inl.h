// The recurrence of a few state rows through a run of tokens. Rows of S (one value dimension each) never meet, so a row
// is read once, taken through all tokens while it lies in the first-level cache, and written once. Included per SIMD
// target.
#if defined(DELTARING_CPU_GDN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARING_CPU_GDN_INL_H_
#undef DELTARING_CPU_GDN_INL_H_
#else
#define DELTARING_CPU_GDN_INL_H_
#endif

#include <cmath>

#include "backends/cpu/gdn_run.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// dots[r] = S[r] . k. One accumulator a row over ascending lanes: the only order there is, here and in Advance.
template <int kRows>
HWY_INLINE void Project(const float* HWY_RESTRICT S, int64_t stride, const float* HWY_RESTRICT k, float* dots) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> sum[kRows];
  for (int r = 0; r < kRows; r++) sum[r] = hn::Zero(d);
  for (int64_t c = 0; c < stride; c += lanes) {
    const auto kc = hn::Load(d, k + c);
    for (int r = 0; r < kRows; r++) sum[r] = hn::MulAdd(hn::Load(d, S + r * stride + c), kc, sum[r]);
  }
  for (int r = 0; r < kRows; r++) dots[r] = hn::GetLane(hn::SumOfLanes(d, sum[r]));
}

// S[r] <- decay S[r] + delta[r] k; o[r] = S[r] . q when kOutput; dots[r] = S[r] . next_k, the next token's projection.
template <int kRows, bool kOutput>
HWY_INLINE void Advance(float* HWY_RESTRICT S, int64_t stride, const GdnStep& t, const float* HWY_RESTRICT next_k,
                        const float* delta, float* o, float* dots) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> out[kRows], next[kRows], dv[kRows];
  for (int r = 0; r < kRows; r++) out[r] = next[r] = hn::Zero(d), dv[r] = hn::Set(d, delta[r]);
  const auto decay = hn::Set(d, t.decay);
  for (int64_t c = 0; c < stride; c += lanes) {
    const auto kc = hn::Load(d, t.k + c), nc = hn::Load(d, next_k + c);
    const auto qc = kOutput ? hn::Load(d, t.q + c) : kc;
    for (int r = 0; r < kRows; r++) {
      const auto s = hn::MulAdd(dv[r], kc, hn::Mul(decay, hn::Load(d, S + r * stride + c)));
      hn::Store(s, d, S + r * stride + c);
      if (kOutput) out[r] = hn::MulAdd(s, qc, out[r]);
      next[r] = hn::MulAdd(s, nc, next[r]);
    }
  }
  for (int r = 0; r < kRows; r++) {
    if (kOutput) o[r] = hn::GetLane(hn::SumOfLanes(d, out[r]));
    dots[r] = hn::GetLane(hn::SumOfLanes(d, next[r]));
  }
}

// Value dimensions [v0, v0 + kRows) of one head through all steps. S holds their rows.
template <int kRows>
HWY_INLINE void RunRows(const GdnRun& run, float* S, int64_t v0) {
  float dots[kRows], delta[kRows], o[kRows];
  bool projected = false;
  for (int64_t i = 0; i < run.count; i++) {
    const GdnStep& t = run.steps[i];
    if (t.round || t.store) {
      Arrive(run, t.round, t.store, S, kRows, v0);
      projected = false;
    }
    if (!projected) Project<kRows>(S, run.stride, t.k, dots);
    for (int r = 0; r < kRows; r++) delta[r] = t.beta * (t.v[v0 + r] - t.decay * dots[r]);
    projected = i + 1 < run.count;
    const float* next_k = projected ? run.steps[i + 1].k : t.k;
    if (t.out) {
      Advance<kRows, true>(S, run.stride, t, next_k, delta, o, dots);
      for (int r = 0; r < kRows; r++) t.out[v0 + r] = o[r];
    } else {
      Advance<kRows, false>(S, run.stride, t, next_k, delta, o, dots);
    }
  }
}

// x / sqrt(sum x^2 + 1e-6) * scale into the padded out.
HWY_INLINE void Normalise(const float* x, int64_t count, int64_t stride, float scale, float* out) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t c = 0; c < stride; c++) out[c] = c < count ? x[c] : 0.0f;
  auto squares = hn::Zero(d);
  for (int64_t c = 0; c < stride; c += lanes) {
    const auto v = hn::Load(d, out + c);
    squares = hn::MulAdd(v, v, squares);
  }
  const float factor = scale / std::sqrt(hn::GetLane(hn::SumOfLanes(d, squares)) + 1e-6f);
  for (int64_t c = 0; c < stride; c += lanes) hn::Store(hn::Mul(hn::Load(d, out + c), hn::Set(d, factor)), d, out + c);
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
