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

// A stored vector [count] into the padded out [stride], as it reads back from `record`.
HWY_INLINE void LoadRounded(const void* x, DType stored, DType record, int64_t count, int64_t stride, float* out) {
  LoadRow(x, stored, count, stride, out);
  if (stored != record) RoundRow(record, stride, out);
}

HWY_INLINE float Dot(const float* x, const float* y, int64_t stride) {
  const hn::ScalableTag<float> d;
  auto sum = hn::Zero(d);
  for (int64_t c = 0; c < stride; c += LaneCount()) sum = hn::MulAdd(hn::Load(d, x + c), hn::Load(d, y + c), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// x [stride] in place: under l2 over sqrt(sum x^2 + 1e-6); times scale.
HWY_INLINE void Normalise(QkNorm norm, float scale, int64_t stride, float* x) {
  const float length = norm == QkNorm::l2 ? std::sqrt(Dot(x, x, stride) + 1e-6f) : 1.0f;
  Scale(scale / length, stride, x, x);
}

// e^x, and NaN of NaN, which hn::Exp alone would turn into 0.
template <class D, class V>
HWY_INLINE V ExpOrNaN(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

// x <- x e^s
HWY_INLINE void ScaleByExp(const float* HWY_RESTRICT s, int64_t stride, float* HWY_RESTRICT x) {
  const hn::ScalableTag<float> d;
  for (int64_t c = 0; c < stride; c += LaneCount())
    hn::Store(hn::Mul(hn::Load(d, x + c), ExpOrNaN(d, hn::Load(d, s + c))), d, x + c);
}

// s <- s + g; kw = k . (w e^s) and qw = q . (w e^s).
HWY_INLINE void DecayedDots(const float* HWY_RESTRICT w, const float* HWY_RESTRICT g, const float* k, const float* q,
                            int64_t stride, float* HWY_RESTRICT s, float* kw, float* qw) {
  const hn::ScalableTag<float> d;
  auto k_sum = hn::Zero(d), q_sum = hn::Zero(d);
  for (int64_t c = 0; c < stride; c += LaneCount()) {
    const auto sum = hn::Add(hn::Load(d, s + c), hn::Load(d, g + c));
    const auto decayed = hn::Mul(hn::Load(d, w + c), ExpOrNaN(d, sum));
    hn::Store(sum, d, s + c);
    k_sum = hn::MulAdd(hn::Load(d, k + c), decayed, k_sum);
    q_sum = hn::MulAdd(hn::Load(d, q + c), decayed, q_sum);
  }
  *kw = hn::GetLane(hn::SumOfLanes(d, k_sum)), *qw = hn::GetLane(hn::SumOfLanes(d, q_sum));
}

// out = x + y
HWY_INLINE void Add(const float* x, const float* y, int64_t stride, float* out) {
  const hn::ScalableTag<float> d;
  for (int64_t c = 0; c < stride; c += LaneCount())
    hn::Store(hn::Add(hn::Load(d, x + c), hn::Load(d, y + c)), d, out + c);
}

// The pairs and decays of a segment whose rows x hold k^ and q^, for one decay a head: all dot products at once, times
// products of scalars. The lengths of k and q are not among these: times a small decay they may leave the normal range,
// where digits are lost, when neither alone does.
HWY_INLINE void PrepareScalar(const GdnPlan& plan, GdnSegment& g) {
  const int64_t m = g.count, stride = plan.stride;
  HWY_ALIGN float dots[2 * kSegment * kRowBlock];
  float* q_dots = dots + kSegment * kRowBlock;
  Ahead nothing({}, 1);
  for (int64_t j = 0; j < m; j += kTileRows) {  // of k_j with the later tokens, themselves included
    const StateRows k{g.x + j * stride, stride};
    const int64_t first = std::max(j, g.records);
    Dots(k, kTileRows, k.data, m - j, stride, nothing, dots + j * kRowBlock + j);
    Dots(k, kTileRows, g.x + (m + first - g.records) * stride, m - first, stride, nothing,
         q_dots + first * kRowBlock + j);
  }
  // e_{j..i} so far, and e_{..i}. In double: a float product of factors just below 1 errs the same way at every factor,
  // and with it the whole state.
  double since[kSegment], all = 1;
  for (int64_t i = 0; i < m; i++) {
    const double e = std::exp(double{g.tokens[i].g[0]}), beta = g.tokens[i].beta;
    const float *kk = dots + i * kRowBlock, *kq = q_dots + i * kRowBlock;
    for (int64_t j = 0; j < i; j++) since[j] *= e, g.A[i * m + j] = beta * (since[j] * kk[j]);
    since[i] = 1, all *= e;
    g.to[i] = all;
    for (int64_t j = 0; j <= i && i >= g.records; j++) g.P[i * m + j] = since[j] * kq[j];
  }
  std::copy_n(since, m, g.on);
  std::fill_n(g.e, stride, all);
  g.w = g.x;
}

// The same for one decay a key channel. What was said of products of decays is met here by sums of their logarithms,
// one for each pair: all of one sign, so that nothing cancels.
HWY_INLINE void PrepareChannels(const GdnPlan& plan, GdnSegment& g, float* temporary) {
  const int64_t m = g.count, stride = plan.stride;
  float *gate = temporary, *all = gate + stride, *since = all + stride;  // [stride], [stride], [m, stride]
  std::fill_n(all, (1 + m) * stride, 0.0f);
  for (int64_t i = 0; i < m; i++) {
    float *k = g.x + i * stride, *q = i < g.records ? k : g.x + (m + i - g.records) * stride;
    std::copy_n(g.tokens[i].g, plan.K, gate);
    std::fill(gate + plan.K, gate + stride, 0.0f);
    for (int64_t j = 0; j < i; j++) {
      float kw = 0;
      DecayedDots(g.w + j * stride, gate, k, q, stride, since + j * stride, &kw, &g.P[i * m + j]);
      g.A[i * m + j] = g.tokens[i].beta * kw;
    }
    g.P[i * m + i] = Dot(q, k, stride);
    std::copy_n(k, stride, g.w + i * stride);
    Add(all, gate, stride, all);
    ScaleByExp(all, stride, k);
    if (q != k) ScaleByExp(all, stride, q);
  }
  for (int64_t j = 0; j < m && g.moves; j++) ScaleByExp(since + j * stride, stride, g.w + j * stride);
  std::fill_n(g.e, stride, 1.0f);
  ScaleByExp(all, stride, g.e);
  for (float* ones : {g.to, g.on}) std::fill_n(ones, m, 1.0f);
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
    LoadRow(t.q, DType::f32, plan.K, stride, q);
    Normalise(plan.norm, plan.scale, stride, q);
  }
  plan.G == 1 ? PrepareScalar(plan, g) : PrepareChannels(plan, g, temporary);
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
