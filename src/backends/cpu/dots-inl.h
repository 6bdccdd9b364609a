// Dot products of many vectors with rows of a state: where the operations of a verify are. Included per SIMD target.
#if defined(DELTARING_CPU_DOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARING_CPU_DOTS_INL_H_
#undef DELTARING_CPU_DOTS_INL_H_
#else
#define DELTARING_CPU_DOTS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "backends/cpu/gdn_run.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors that meet kTileRows rows of S at a time, their sums in registers: 24 of 32 with AVX-512 and NEON, 12 of 16.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM
constexpr int64_t kTileX = 6;
#else
constexpr int64_t kTileX = 3;
#endif

HWY_INLINE int64_t LaneCount() { return static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>())); }

// out = factor x; in place too.
HWY_INLINE void Scale(float factor, int64_t count, const float* x, float* out) {
  const hn::ScalableTag<float> d;
  const auto f = hn::Set(d, factor);
  for (int64_t c = 0; c < count; c += LaneCount()) hn::Store(hn::Mul(hn::Load(d, x + c), f), d, out + c);
}

#if HWY_TARGET != HWY_SCALAR
// The sum of the 128-bit blocks of v.
template <class D>
HWY_INLINE hn::Vec<hn::FixedTag<float, kTileRows>> SumBlocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) == kTileRows) {
    return v;
  } else {
    const hn::Half<D> half;
    return SumBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
#endif

// out[r] = the sum over the lanes of the r-th argument.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void SumRows(D d, V a, V b, V c, V e, float* out) {
#if HWY_TARGET == HWY_SCALAR
  const V rows[] = {a, b, c, e};
  for (int r = 0; r < kTileRows; r++) out[r] = hn::GetLane(hn::SumOfLanes(d, rows[r]));
#else
  const hn::Repartition<uint64_t, D> wide;
  const auto ab = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  const auto blocks =
      hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(wide, ab, ce)));
  hn::StoreU(SumBlocks(d, blocks), hn::FixedTag<float, kTileRows>(), out);
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

// Brings memory closer, a few cache lines at a time between the arithmetic.
class Ahead {
 public:
  // All pieces within `calls` > 0 calls.
  Ahead(std::span<const GdnAhead> pieces, int64_t calls) : pieces_(pieces) {
    int64_t lines = 0;
    for (const GdnAhead& piece : pieces) lines += piece.count * ((piece.bytes + kLine - 1) / kLine);
    step_ = (lines + calls - 1) / calls;
  }
  HWY_INLINE void some() {
    for (int64_t wanted = step_; wanted > 0 && (lines_ > 0 || next());) {
      const int64_t now = std::min(wanted, lines_);
      for (int64_t i = 0; i < now; i++) hwy::Prefetch(at_ + i * kLine);
      at_ += now * kLine, lines_ -= now, wanted -= now;
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  // Whether there is another row: then it is the one at_ stands in.
  bool next() {
    if (pieces_.empty()) return false;
    const GdnAhead& piece = pieces_.front();
    at_ = static_cast<const char*>(piece.at) + row_ * piece.stride;
    lines_ = (piece.bytes + kLine - 1) / kLine;
    if (++row_ == piece.count) row_ = 0, pieces_ = pieces_.subspan(1);
    return true;
  }

  std::span<const GdnAhead> pieces_;  // those with rows that are still to come
  int64_t row_ = 0, step_;
  const char* at_ = nullptr;
  int64_t lines_ = 0;  // left of the row
};

// Tiles that `count` of x make with kTileRows rows.
constexpr int64_t DotTiles(int64_t count) {
  const int64_t rest = count % kTileX;
  return count / kTileX + rest / 3 + (rest % 3 != 0);
}

// dots[i][r] = S[r] . x[i] for `rows` <= kRowBlock rows, a multiple of kTileRows, and `count` of x.
HWY_INLINE void Dots(const StateRows& S, int64_t rows, const float* x, int64_t count, int64_t stride, Ahead& ahead,
                     float* dots) {
  for (int64_t r = 0; r < rows; r += kTileRows) {
    const auto tile = [&]<int kX>(int64_t i) HWY_ATTR {
      ahead.some();
      DotTile<kX>(S, r, x + i * stride, stride, dots + i * kRowBlock + r);
    };
    int64_t i = 0;
    for (; i + kTileX <= count; i += kTileX) tile.template operator()<kTileX>(i);
    for (; kTileX > 3 && i + 3 <= count; i += 3) tile.template operator()<3>(i);
    if (count - i == 2) tile.template operator()<2>(i);
    if (count - i == 1) tile.template operator()<1>(i);
  }
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
