// A block of rows of S through a run of segments (gdn_run.h) while it lies in the first-level cache. Rows of S never
// meet, so the state is read once and written once. Included per SIMD target.
#if defined(DELTARING_CPU_GDN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARING_CPU_GDN_INL_H_
#undef DELTARING_CPU_GDN_INL_H_
#else
#define DELTARING_CPU_GDN_INL_H_
#endif

#include <algorithm>

#include "backends/cpu/dots-inl.h"
#include "backends/cpu/gdn_run.h"
#include "backends/cpu/gdn_solve-inl.h"
#include "backends/cpu/state_block-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of kTileRows rows that are in registers as the state moves.
constexpr int64_t kMoveColumns = 2;

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
                     const StateRows& to, Ahead& ahead) {
  const int64_t lanes = LaneCount();
  for (int64_t r = 0; r < kRowBlock; r += kTileRows) {
    const float* from_row = S.data + r * S.stride;
    float* to_row = to.data + r * to.stride;
    const auto tile = [&]<int kColumns>(int64_t c) HWY_ATTR {
      ahead.some();
      MoveTile<kColumns>(g, D + r, stride, round, from_row, S.stride, to_row, to.stride, c);
    };
    int64_t c = 0;
    for (; c + kMoveColumns * lanes <= stride; c += kMoveColumns * lanes) tile.template operator()<kMoveColumns>(c);
    for (; c < stride; c += lanes) tile.template operator()<1>(c);
  }
}

// The tiles of a segment in a block, for Ahead.
HWY_INLINE int64_t Tiles(const GdnSegment& g, int64_t stride) {
  const int64_t moves = g.moves ? std::max<int64_t>(1, stride / (kMoveColumns * LaneCount())) : 0;
  return kRowBlock / kTileRows * (DotTiles(2 * g.count - g.records) + moves);
}

HWY_INLINE void MoveAndRound(const GdnSegment& g, const float* D, DType t, int64_t stride, const StateRows& S,
                             const StateRows& to, Ahead& ahead) {
  if (!g.round || t == DType::f32) {
    Move(
        g, D, stride, [](auto, auto v) HWY_ATTR { return v; }, S, to, ahead);
  } else if (t == DType::bf16) {
    Move(
        g, D, stride, [](auto d, auto v) HWY_ATTR { return RoundToBf16(d, v); }, S, to, ahead);
  } else {
    Move(
        g, D, stride, [](auto d, auto v) HWY_ATTR { return RoundToF16(d, v); }, S, to, ahead);
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

  // The state to the end of the segment, and where that is wanted. D is lost.
  HWY_INLINE void leave(const GdnSegment& g, float* HWY_RESTRICT D, Ahead& ahead) {
    const StateRows to = g.store && usable(g.store) ? rows_of(g.store) : scratch_;
    for (int64_t j = 0; j < g.count; j++) Scale(g.on[j], kRowBlock, D + j * kRowBlock, D + j * kRowBlock);
    MoveAndRound(g, D, run_.from.dtype, run_.stride, at_, to, ahead);
    at_ = to;
    for (int64_t r = 0; r < rows_ && g.store && to.data == scratch_.data; r++) {
      StoreRow(scratch_.data + r * run_.stride, g.store.dtype, g.store.shape[1], g.round,
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
HWY_INLINE void RunRows(const GdnRun& run, int64_t v0, float* scratch, Ahead& ahead) {
  HWY_ALIGN float dots[2 * kSegment * kRowBlock], D[kSegment * kRowBlock];
  Block block(run, v0, scratch);
  for (int64_t i = 0; i < run.count; i++) {
    const GdnSegment& g = run.segments[i];
    Dots(block.at(), kRowBlock, g.x, 2 * g.count - g.records, run.stride, ahead, dots);
    Solve(g, dots, v0, run.from.shape[0], D);
    if (g.moves) block.leave(g, D, ahead);
  }
  if (run.keep) block.keep();
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
