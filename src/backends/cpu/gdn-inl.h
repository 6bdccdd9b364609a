// The segments of gdn_run.h on vectors: what is prepared of a token, and a block of rows of S through a run of
// segments while it lies in the first-level cache. Rows of S never meet, so the state is read once and written once.
// Included per SIMD target.
#if defined(DELTARING_CPU_GDN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARING_CPU_GDN_INL_H_
#undef DELTARING_CPU_GDN_INL_H_
#else
#define DELTARING_CPU_GDN_INL_H_
#endif

#include <cmath>

#include "backends/cpu/gdn_run.h"
#include "backends/cpu/state_block-inl.h"
#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE int64_t LaneCount() { return static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>())); }

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
    hn::Store(record == DType::bf16 ? RoundToBf16(d, v) : RoundToF16(d, v), d, out + c);
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

// out[r] = the sum over the lanes of the r-th argument.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void SumRows(D d, V a, V b, V c, V e, float* out) {
#if HWY_TARGET == HWY_SCALAR
  const V rows[] = {a, b, c, e};
  for (int r = 0; r < kTileRows; r++) out[r] = hn::GetLane(hn::SumOfLanes(d, rows[r]));
#else
  const hn::Repartition<uint64_t, D> wide;
  const hn::CappedTag<float, kTileRows> d4;
  const auto ab = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  const auto blocks =
      hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(wide, ab, ce)));
  if constexpr (hn::MaxLanes(d) == 2 * kTileRows) {
    hn::StoreU(hn::Add(hn::LowerHalf(d4, blocks), hn::UpperHalf(d4, blocks)), d4, out);
  } else {
    HWY_ALIGN float lanes[hn::MaxLanes(d)];
    hn::Store(blocks, d, lanes);
    auto sum = hn::Load(d4, lanes);
    for (int64_t i = kTileRows; i < LaneCount(); i += kTileRows) sum = hn::Add(sum, hn::Load(d4, lanes + i));
    hn::StoreU(sum, d4, out);
  }
#endif
}

// Rows of a state in float32: a block of scratch, or the stored state itself.
struct StateRows {
  float* data;
  int64_t stride;
};

// dots[i][r] = S[r] . x[i] for kTileRows rows of S from r0 on and kX of x; a row of dots has kRowBlock elements.
template <int kX>
HWY_INLINE void DotTile(const StateRows& S, int64_t r0, const float* HWY_RESTRICT x, int64_t stride,
                        float* HWY_RESTRICT dots) {
  const hn::ScalableTag<float> d;
  hn::Vec<decltype(d)> sum[kX][kTileRows];
  for (int i = 0; i < kX; i++)
    for (int r = 0; r < kTileRows; r++) sum[i][r] = hn::Zero(d);
  const float *row0 = S.data + r0 * S.stride, *row1 = row0 + S.stride, *row2 = row1 + S.stride, *row3 = row2 + S.stride;
  for (int64_t c = 0; c < stride; c += LaneCount()) {
    const auto s0 = hn::LoadU(d, row0 + c), s1 = hn::LoadU(d, row1 + c);
    const auto s2 = hn::LoadU(d, row2 + c), s3 = hn::LoadU(d, row3 + c);
    for (int i = 0; i < kX; i++) {
      const auto xc = hn::Load(d, x + i * stride + c);
      sum[i][0] = hn::MulAdd(s0, xc, sum[i][0]);
      sum[i][1] = hn::MulAdd(s1, xc, sum[i][1]);
      sum[i][2] = hn::MulAdd(s2, xc, sum[i][2]);
      sum[i][3] = hn::MulAdd(s3, xc, sum[i][3]);
    }
  }
  for (int i = 0; i < kX; i++) SumRows(d, sum[i][0], sum[i][1], sum[i][2], sum[i][3], dots + i * kRowBlock);
}

// Brings the next rows of the stored state closer, a few cache lines at a time between the arithmetic.
class Ahead {
 public:
  Ahead(const void* begin, int64_t bytes, int64_t calls)
      : at_(static_cast<const char*>(begin)),
        left_(bytes),
        step_(((bytes + calls - 1) / calls + kLine - 1) / kLine * kLine) {}
  HWY_INLINE void some() {
    for (int64_t i = 0; i < step_ && left_ > 0; i += kLine, at_ += kLine, left_ -= kLine) hwy::Prefetch(at_);
  }

 private:
  static constexpr int64_t kLine = 64;
  const char* at_;
  int64_t left_, step_;
};

// dots[i][r] = S[r] . x[i] for `rows` <= kRowBlock rows, a multiple of kTileRows, and `count` of x.
HWY_INLINE void Dots(const StateRows& S, int64_t rows, const float* x, int64_t count, int64_t stride, Ahead& ahead,
                     float* dots) {
  for (int64_t r = 0; r < rows; r += kTileRows) {
    int64_t i = 0;
    for (; i + kTileX <= count; i += kTileX) {
      ahead.some();
      DotTile<kTileX>(S, r, x + i * stride, stride, dots + i * kRowBlock + r);
    }
    if (count - i == 2) DotTile<2>(S, r, x + i * stride, stride, dots + i * kRowBlock + r);
    if (count - i == 1) DotTile<1>(S, r, x + i * stride, stride, dots + i * kRowBlock + r);
  }
}

// The pairs and decays of a segment whose rows x hold k^ and q^, for one decay a head: all dot products at once, times
// products of scalars.
HWY_INLINE void PrepareScalar(const GdnPlan& plan, GdnSegment& g) {
  const int64_t m = g.count, stride = plan.stride;
  HWY_ALIGN float dots[2 * kSegment * kRowBlock];
  Ahead nothing(nullptr, 0, 1);
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

// D [m, kRowBlock] of value dimensions [v0, v0 + kRowBlock) by forward substitution, and their outputs. The rows of a
// block are the lanes of kVectors vectors.
HWY_INLINE void Solve(const GdnSegment& g, const float* HWY_RESTRICT dots, int64_t v0, int64_t V,
                      float* HWY_RESTRICT D) {
  const hn::CappedTag<float, kRowBlock / 2> d;  // two independent chains
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), Vp = padded_rows(V), m = g.count;
  for (int64_t i = 0; i < m; i++) {
    const float *A = g.A + i * m, *P = g.P + i * m, *seen = dots + i * kRowBlock, *v = g.v + i * Vp + v0;
    const auto beta = hn::Set(d, g.tokens[i].beta);
    for (int64_t r = 0; r < kRowBlock; r += 2 * lanes) {
      auto d0 = hn::Mul(beta, hn::Sub(hn::Load(d, v + r), hn::Load(d, seen + r)));
      auto d1 = hn::Mul(beta, hn::Sub(hn::Load(d, v + r + lanes), hn::Load(d, seen + r + lanes)));
      for (int64_t j = 0; j < i; j++) {
        const auto a = hn::Set(d, A[j]);
        d0 = hn::NegMulAdd(a, hn::Load(d, D + j * kRowBlock + r), d0);
        d1 = hn::NegMulAdd(a, hn::Load(d, D + j * kRowBlock + r + lanes), d1);
      }
      hn::Store(d0, d, D + i * kRowBlock + r), hn::Store(d1, d, D + i * kRowBlock + r + lanes);
    }
    if (i < g.records) continue;
    const float* seen_q = dots + (m + i - g.records) * kRowBlock;
    HWY_ALIGN float out[kRowBlock];
    for (int64_t r = 0; r < kRowBlock; r += 2 * lanes) {
      auto o0 = hn::Load(d, seen_q + r), o1 = hn::Load(d, seen_q + r + lanes);
      for (int64_t j = 0; j <= i; j++) {
        const auto p = hn::Set(d, P[j]);
        o0 = hn::MulAdd(p, hn::Load(d, D + j * kRowBlock + r), o0);
        o1 = hn::MulAdd(p, hn::Load(d, D + j * kRowBlock + r + lanes), o1);
      }
      hn::Store(o0, d, out + r), hn::Store(o1, d, out + r + lanes);
    }
    std::copy_n(out, std::min(kRowBlock, V - v0), g.tokens[i].out + v0);
  }
}

// kTileRows rows and kColumns vectors of S to the end of the segment: to = S e + sum_j D_j w_j, j ascending, rounded.
template <int kColumns, class Round>
HWY_INLINE void MoveTile(const GdnSegment& g, const float* HWY_RESTRICT D, int64_t stride, const Round& round,
                         const float* S, int64_t S_stride, float* to, int64_t to_stride, int64_t c0) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = LaneCount();
  hn::Vec<decltype(d)> s[kColumns][kTileRows];
  for (int c = 0; c < kColumns; c++)
    for (int r = 0; r < kTileRows; r++)
      s[c][r] = hn::Mul(hn::LoadU(d, S + r * S_stride + c0 + c * lanes), hn::Load(d, g.e + c0 + c * lanes));
  for (int64_t j = 0; j < g.count; j++) {
    const float *w = g.w + j * stride + c0, *Dj = D + j * kRowBlock;
    hn::Vec<decltype(d)> wc[kColumns];
    for (int c = 0; c < kColumns; c++) wc[c] = hn::Load(d, w + c * lanes);
    for (int r = 0; r < kTileRows; r++) {
      const auto dr = hn::Set(d, Dj[r]);
      for (int c = 0; c < kColumns; c++) s[c][r] = hn::MulAdd(dr, wc[c], s[c][r]);
    }
  }
  for (int c = 0; c < kColumns; c++)
    for (int r = 0; r < kTileRows; r++) hn::StoreU(round(d, s[c][r]), d, to + r * to_stride + c0 + c * lanes);
}

template <class Round>
HWY_INLINE void Move(const GdnSegment& g, const float* D, int64_t stride, const Round& round, const StateRows& S,
                     const StateRows& to) {
  const int64_t lanes = LaneCount();
  for (int64_t r = 0; r < kRowBlock; r += kTileRows) {
    const float* from_row = S.data + r * S.stride;
    float* to_row = to.data + r * to.stride;
    int64_t c = 0;
    for (; c + 2 * lanes <= stride; c += 2 * lanes)
      MoveTile<2>(g, D + r, stride, round, from_row, S.stride, to_row, to.stride, c);
    if (c < stride) MoveTile<1>(g, D + r, stride, round, from_row, S.stride, to_row, to.stride, c);
  }
}

HWY_INLINE void MoveAndRound(const GdnSegment& g, const float* D, DType t, int64_t stride, const StateRows& S,
                             const StateRows& to) {
  if (!g.round || t == DType::f32) {
    Move(
        g, D, stride, [](auto, auto v) HWY_ATTR { return v; }, S, to);
  } else if (t == DType::bf16) {
    Move(
        g, D, stride, [](auto d, auto v) HWY_ATTR { return RoundToBf16(d, v); }, S, to);
  } else {
    Move(
        g, D, stride, [](auto d, auto v) HWY_ATTR { return RoundToF16(d, v); }, S, to);
  }
}

// One block of rows [v0, v0 + kRowBlock) of the head.
class Block {
 public:
  Block(const GdnRun& run, int64_t v0, float* scratch)
      : run_(run),
        v0_(v0),
        rows_(std::min(kRowBlock, run.from.shape[0] - v0)),
        scratch_{scratch, run.stride},
        at_(scratch_) {
    if (!run.fresh) return;
    if (usable(run.from)) {
      at_ = rows_of(run.from);
      return;
    }
    for (int64_t r = 0; r < kRowBlock; r++) {
      float* row = scratch + r * run.stride;
      if (r < rows_)
        LoadRow(run.from.address(run.from.offset(v0 + r)), run.from.dtype, run.from.shape[1], run.stride, row);
      if (r >= rows_) std::fill_n(row, run.stride, 0.0f);
    }
  }

  const StateRows& at() const { return at_; }

  // The state to the end of the segment, and where that is wanted.
  void leave(const GdnSegment& g, const float* D) {
    const StateRows to = g.store && usable(g.store) ? rows_of(g.store) : scratch_;
    MoveAndRound(g, D, run_.from.dtype, run_.stride, at_, to);
    at_ = to;
    for (int64_t r = 0; r < rows_ && g.store && to.data == scratch_.data; r++) {
      StoreRow(scratch_.data + r * run_.stride, g.store.dtype, g.store.shape[1], run_.stride,
               g.store.address(g.store.offset(v0_ + r)));
    }
  }

  // What follows finds the state in the scratch.
  void keep() {
    for (int64_t r = 0; r < kRowBlock && at_.data != scratch_.data; r++)
      std::copy_n(at_.data + r * at_.stride, run_.stride, scratch_.data + r * run_.stride);
  }

 private:
  // Whether a stored state can be worked on where it lies: float32, whole vectors, a whole block.
  bool usable(const View<2>& state) const {
    return state.dtype == DType::f32 && state.shape[1] == run_.stride && rows_ == kRowBlock;
  }
  StateRows rows_of(const View<2>& state) const { return {state.f32(v0_), state.stride[0]}; }

  const GdnRun& run_;
  const int64_t v0_, rows_;
  const StateRows scratch_;
  StateRows at_;
};

// Value dimensions [v0, v0 + kRowBlock) of the head through all segments.
HWY_INLINE void RunRows(const GdnRun& run, int64_t v0, float* scratch) {
  HWY_ALIGN float dots[2 * kSegment * kRowBlock], D[kSegment * kRowBlock];
  // Brought closer meanwhile: the rows behind these, or those of the next head, since heads of a seat lie side by side.
  const int64_t bytes = kRowBlock * run.from.shape[1] * static_cast<int64_t>(size_of(run.from.dtype));
  const int64_t tiles = std::max<int64_t>(1, (2 * run.segments[0].count - run.segments[0].records) / kTileX);
  Ahead ahead(run.from.address(run.from.offset(v0 + kRowBlock)), run.fresh ? bytes : 0, tiles * kRowBlock / kTileRows);
  Block block(run, v0, scratch);
  for (int64_t i = 0; i < run.count; i++) {
    const GdnSegment& g = run.segments[i];
    Dots(block.at(), kRowBlock, g.x, 2 * g.count - g.records, run.stride, ahead, dots);
    Solve(g, dots, v0, run.from.shape[0], D);
    if (g.moves) block.leave(g, D);
  }
  if (run.keep) block.keep();
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
