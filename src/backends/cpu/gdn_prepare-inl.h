// What a segment of gdn_run.h knows before it meets the state: its vectors, and how its tokens meet each other.
// Included per SIMD target.
#if defined(DELTARING_CPU_GDN_PREPARE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARING_CPU_GDN_PREPARE_INL_H_
#undef DELTARING_CPU_GDN_PREPARE_INL_H_
#else
#define DELTARING_CPU_GDN_PREPARE_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "backends/cpu/dots-inl.h"
#include "backends/cpu/gdn_run.h"
#include "backends/cpu/state_block-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// out = factor x; in place too.
HWY_INLINE void Scale(float factor, int64_t stride, const float* x, float* out) {
  const hn::ScalableTag<float> d;
  const auto f = hn::Set(d, factor);
  for (int64_t c = 0; c < stride; c += LaneCount()) hn::Store(hn::Mul(hn::Load(d, x + c), f), d, out + c);
}

// A stored vector [count] into the padded out [stride], as it reads back from `record`.
HWY_INLINE void LoadRounded(const void* x, DType stored, DType record, int64_t count, int64_t stride, float* out) {
  const hn::ScalableTag<float> d;
  LoadRow(x, stored, count, stride, out);
  if (record == DType::f32 || stored != DType::f32) return;
  for (int64_t c = 0; c < stride; c += LaneCount()) {
    const auto v = hn::Load(d, out + c);
    hn::Store(RoundTo(d, record, v), d, out + c);
  }
}

// x [stride] in place: under l2 over sqrt(sum x^2 + 1e-6); times scale.
HWY_INLINE void Normalise(QkNorm norm, float scale, int64_t stride, float* x) {
  const hn::ScalableTag<float> d;
  auto squares = hn::Zero(d);
  for (int64_t c = 0; c < stride && norm == QkNorm::l2; c += LaneCount()) {
    const auto v = hn::Load(d, x + c);
    squares = hn::MulAdd(v, v, squares);
  }
  const float length = norm == QkNorm::l2 ? std::sqrt(hn::GetLane(hn::SumOfLanes(d, squares)) + 1e-6f) : 1.0f;
  Scale(scale / length, stride, x, x);
}

// e^g of [K] gates into out [stride]. NaN stays NaN.
HWY_INLINE void Decay(const float* g, int64_t K, int64_t stride, float* out) {
  const hn::ScalableTag<float> d;
  std::copy_n(g, K, out);
  std::fill(out + K, out + stride, 0.0f);
  for (int64_t c = 0; c < stride; c += LaneCount()) {
    const auto x = hn::Load(d, out + c);
    hn::Store(hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x)), d, out + c);
  }
}

// w <- w e; kw = k . w and qw = q . w of the new w.
HWY_INLINE void DecayAndDot(float* HWY_RESTRICT w, const float* HWY_RESTRICT e, const float* HWY_RESTRICT k,
                            const float* HWY_RESTRICT q, int64_t stride, float* kw, float* qw) {
  const hn::ScalableTag<float> d;
  auto k_sum = hn::Zero(d), q_sum = hn::Zero(d);
  for (int64_t c = 0; c < stride; c += LaneCount()) {
    const auto decayed = hn::Mul(hn::Load(d, w + c), hn::Load(d, e + c));
    hn::Store(decayed, d, w + c);
    k_sum = hn::MulAdd(hn::Load(d, k + c), decayed, k_sum);
    q_sum = hn::MulAdd(hn::Load(d, q + c), decayed, q_sum);
  }
  *kw = hn::GetLane(hn::SumOfLanes(d, k_sum)), *qw = hn::GetLane(hn::SumOfLanes(d, q_sum));
}

// x <- x y
HWY_INLINE void Multiply(float* HWY_RESTRICT x, const float* HWY_RESTRICT y, int64_t stride) {
  const hn::ScalableTag<float> d;
  for (int64_t c = 0; c < stride; c += LaneCount())
    hn::Store(hn::Mul(hn::Load(d, x + c), hn::Load(d, y + c)), d, x + c);
}

// The pairs and decays of a segment whose rows x hold k^ and q^, for one decay a head: all dot products at once, times
// products of scalars.
HWY_INLINE void PrepareScalar(const GdnPlan& plan, GdnSegment& g) {
  const int64_t m = g.count, stride = plan.stride;
  HWY_ALIGN float dots[2 * kSegment * kRowBlock];
  RowsAhead nothing(nullptr, 0, 1);
  Dots({g.x, stride}, (m + kTileRows - 1) / kTileRows * kTileRows, g.x, 2 * m - g.records, stride, nothing, dots);
  float since[kSegment], all = 1;  // e_{j..i} so far, and e_{..i}
  for (int64_t i = 0; i < m; i++) {
    const float e = std::exp(g.tokens[i].g[0]), beta = g.tokens[i].beta;
    const float *kk = dots + i * kRowBlock, *kq = dots + (m + i - g.records) * kRowBlock;
    for (int64_t j = 0; j < i; j++) since[j] *= e, g.A[i * m + j] = beta * (since[j] * kk[j]);
    since[i] = 1;
    for (int64_t j = 0; j <= i && i >= g.records; j++) g.P[i * m + j] = since[j] * kq[j];
  }
  for (int64_t j = 0; j < m && g.moves; j++) Scale(since[j], stride, g.x + j * stride, g.w + j * stride);
  for (int64_t i = 0; i < m; i++) {
    all *= std::exp(g.tokens[i].g[0]);
    Scale(all, stride, g.x + i * stride, g.x + i * stride);
    float* q = g.x + (m + i - g.records) * stride;
    if (i >= g.records) Scale(all, stride, q, q);
  }
  std::fill_n(g.e, stride, all);
}

// The same for one decay a key channel: w runs along, a vector for each token.
HWY_INLINE void PrepareChannels(const GdnPlan& plan, GdnSegment& g, float* decay) {
  const int64_t m = g.count, stride = plan.stride;
  for (int64_t i = 0; i < m; i++) {
    float *k = g.x + i * stride, *q = i < g.records ? k : g.x + (m + i - g.records) * stride;
    Decay(g.tokens[i].g, plan.K, stride, decay);
    if (i == 0) std::copy_n(decay, stride, g.e);
    if (i > 0) Multiply(g.e, decay, stride);
    for (int64_t j = 0; j <= i; j++) {
      float kw = 0, *w = g.w + j * stride;
      if (j == i) std::copy_n(k, stride, w), std::fill_n(decay, stride, 1.0f);
      DecayAndDot(w, decay, k, q, stride, &kw, &g.P[i * m + j]);
      g.A[i * m + j] = g.tokens[i].beta * kw;
    }
    Multiply(k, g.e, stride);
    if (q != k) Multiply(q, g.e, stride);
  }
}

// The inputs of the next head lie behind those of this one.
HWY_INLINE void PrefetchNext(const void* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) hwy::Prefetch(static_cast<const char*>(row) + bytes + i);
}

HWY_INLINE void Prepare(const GdnPlan& plan, GdnSegment& g, float* temporary) {
  const int64_t stride = plan.stride, Vp = padded_rows(plan.V);
  for (int64_t i = 0; i < g.count; i++) {
    const GdnToken& t = g.tokens[i];
    float *k = g.x + i * stride, *q = g.x + (g.count + i - g.records) * stride;
    LoadRounded(t.k, t.stored, plan.record, plan.K, stride, k);
    LoadRounded(t.v, t.stored, plan.record, plan.V, Vp, g.v + i * Vp);
    Normalise(plan.norm, 1.0f, stride, k);
    if (!t.q) continue;
    PrefetchNext(t.k, plan.K * 4), PrefetchNext(t.q, plan.K * 4), PrefetchNext(t.v, plan.V * 4);
    LoadRow(t.q, DType::f32, plan.K, stride, q);
    Normalise(plan.norm, plan.scale, stride, q);
  }
  plan.G == 1 ? PrepareScalar(plan, g) : PrepareChannels(plan, g, temporary);
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
