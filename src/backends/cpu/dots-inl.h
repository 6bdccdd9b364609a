// Dot products of many vectors with rows of a state: where the operations of a verify are. Included per SIMD target.
#if defined(DELTARING_CPU_DOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARING_CPU_DOTS_INL_H_
#undef DELTARING_CPU_DOTS_INL_H_
#else
#define DELTARING_CPU_DOTS_INL_H_
#endif

#include <cstdint>

#include "backends/cpu/gdn_ahead.h"
#include "backends/cpu/gdn_run.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows of S and vectors that meet at a time, their sums in registers: 24 of 32 with AVX-512 and NEON, 12 of 16.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM
constexpr int64_t kTileRows = 8;
#else
constexpr int64_t kTileRows = 4;
#endif
constexpr int64_t kTileX = 3;
// Rows of S that go through a run of segments together, while they lie in the first-level cache: 8 or 16 KiB.
constexpr int64_t kRowBlock = 4 * kTileRows;
static_assert(kTileRows <= kMostTileRows && kRowBlock <= kMostRowBlock && kSegment <= kRowBlock);

HWY_INLINE int64_t LaneCount() { return static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>())); }

// out = factor x; in place too.
HWY_INLINE void Scale(float factor, int64_t count, const float* x, float* out) {
  const hn::ScalableTag<float> d;
  const auto f = hn::Set(d, factor);
  for (int64_t c = 0; c < count; c += LaneCount()) hn::Store(hn::Mul(hn::Load(d, x + c), f), d, out + c);
}

#if HWY_TARGET != HWY_SCALAR
constexpr int kBlock = 4;  // floats in 128 bits

// Sums of kBlock vectors, in as many parts as v has blocks of 128 bits: in each block one for every vector.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V SumInBlocks(D d, const V* v) {
  const hn::Repartition<uint64_t, D> wide;
  const auto low = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1])));
  const auto high = hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3])));
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, low, high)),
                 hn::BitCast(d, hn::InterleaveUpper(wide, low, high)));
}

// out = the sum of the blocks of v.
template <class D>
HWY_INLINE void StoreSum(D d, hn::Vec<D> v, float* out) {
  if constexpr (hn::MaxLanes(d) == kBlock) {
    hn::StoreU(v, d, out);
  } else {
    const hn::Half<D> half;
    StoreSum(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), out);
  }
}

// out = the sum of the blocks of a, and behind it that of b.
template <class D>
HWY_INLINE void StoreSums(D d, hn::Vec<D> a, hn::Vec<D> b, float* out) {
  if constexpr (hn::MaxLanes(d) == kBlock) {
    hn::StoreU(a, d, out), hn::StoreU(b, d, out + kBlock);
  } else {
    const auto sums = hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
    if constexpr (hn::MaxLanes(d) == 2 * kBlock) return hn::StoreU(sums, d, out);
    const hn::Half<D> half;
    StoreSums(half, hn::LowerHalf(half, sums), hn::UpperHalf(half, sums), out);
  }
}
#endif

// out[r] = the sum over the lanes of rows[r].
template <class D, class V = hn::Vec<D>>
HWY_INLINE void SumRows(D d, const V (&rows)[kTileRows], float* out) {
#if HWY_TARGET == HWY_SCALAR
  for (int r = 0; r < kTileRows; r++) out[r] = hn::GetLane(hn::SumOfLanes(d, rows[r]));
#else
  if constexpr (kTileRows == kBlock) {
    StoreSum(d, SumInBlocks(d, rows), out);
  } else {
    StoreSums(d, SumInBlocks(d, rows), SumInBlocks(d, rows + kBlock), out);
  }
#endif
}

// Rows of a state in float32: a block of scratch, or the stored state itself.
struct StateRows {
  float* data;
  int64_t stride;
};

// What has been loaded stays where it is: the compiler would load it again for every product, which are more loads than
// a core does in the time of the products.
template <class V>
HWY_INLINE void KeepInRegister([[maybe_unused]] V& v) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && (HWY_COMPILER_GCC || HWY_COMPILER_CLANG)
  asm("" : "+v"(v.raw));
#endif
}

// dots[i][r] = S[r] . x[i] for kTileRows rows of S and kX of x; a row of dots has kRowBlock elements.
template <int kX>
HWY_INLINE void DotTile(const StateRows& S, const float* HWY_RESTRICT x, int64_t stride, float* HWY_RESTRICT dots) {
  const hn::ScalableTag<float> d;
  hn::Vec<decltype(d)> sum[kX][kTileRows];
  const auto add = [&]<bool kFirst>(int64_t c) HWY_ATTR {
    hn::Vec<decltype(d)> xc[kX];
    for (int i = 0; i < kX; i++) xc[i] = hn::Load(d, x + i * stride + c);
    for (int r = 0; r < kTileRows; r++) {
      auto s = hn::LoadU(d, S.data + r * S.stride + c);
      KeepInRegister(s);
      for (int i = 0; i < kX; i++) sum[i][r] = kFirst ? hn::Mul(s, xc[i]) : hn::MulAdd(s, xc[i], sum[i][r]);
    }
  };
  add.template operator()<true>(0);
  for (int64_t c = LaneCount(); c < stride; c += LaneCount()) add.template operator()<false>(c);
  for (int i = 0; i < kX; i++) SumRows(d, sum[i], dots + i * kRowBlock);
}

// Tiles that `count` of x make with kTileRows rows.
constexpr int64_t DotTiles(int64_t count) { return (count + kTileX - 1) / kTileX; }

// dots[i][r] = S[r] . x[i] for `rows` <= kRowBlock rows, a multiple of kTileRows, and `count` of x, which are spread
// evenly over their tiles: few chains of sums would wait for each other.
HWY_INLINE void Dots(const StateRows& S, int64_t rows, const float* x, int64_t count, int64_t stride, Ahead& ahead,
                     float* dots) {
  static_assert(kTileX == 3);
  const int64_t tiles = DotTiles(count), least = tiles > 0 ? count / tiles : 0, larger = count - tiles * least;
  for (int64_t r = 0; r < rows; r += kTileRows) {
    const StateRows tile{S.data + r * S.stride, S.stride};
    for (int64_t t = 0, i = 0; t < tiles; t++) {
      const int64_t size = least + (t < larger);
      ahead.some();
      const float* xi = x + i * stride;
      float* to = dots + i * kRowBlock + r;
      if (size == 3) DotTile<3>(tile, xi, stride, to);
      if (size == 2) DotTile<2>(tile, xi, stride, to);
      if (size == 1) DotTile<1>(tile, xi, stride, to);
      i += size;
    }
  }
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
