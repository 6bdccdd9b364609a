#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/linear_i4.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kTileRows = 8;  // of x: their sums stay in registers while a row of w passes
constexpr int kTileCols = 4;  // whose sums are added up together
constexpr int64_t kGroup = LinearI4Args::kGroup, kHalf = kGroup / 2;
constexpr int64_t kAhead = 8;  // rows of w that are brought into the cache early
constexpr int64_t kCacheLine = 64;

HWY_INLINE int64_t RowOf(const LinearI4Args& a, int64_t n) { return a.rows ? a.rows[n] : n; }

#if HWY_TARGET == HWY_SCALAR
using SumsVec = int32_t;

// sums[i] = sum_k x[m + i, k] code[k] for MR rows of x.
template <int MR>
HWY_INLINE void Column(const LinearI4Args& a, int64_t m, const uint8_t* w, const uint8_t*, SumsVec* sums) {
  for (int i = 0; i < MR; i++) {
    sums[i] = 0;
    for (int64_t k = 0; k < a.K; k++) {
      const uint8_t codes = w[k / kGroup * kHalf + k % kHalf];
      sums[i] += a.x[(m + i) * a.K + k] * (k % kGroup < kHalf ? codes & 15 : codes >> 4);
    }
  }
}

HWY_INLINE void AddUp(SumsVec a, SumsVec b, SumsVec c, SumsVec e, int32_t* out) {
  out[0] = a, out[1] = b, out[2] = c, out[3] = e;
}
#else
using Bytes = hn::CappedTag<uint8_t, kHalf>;
using Signed = hn::RebindToSigned<Bytes>;
using Pairs = hn::Repartition<int16_t, Bytes>;
using Sums = hn::Repartition<int32_t, Bytes>;
using SumsVec = hn::Vec<Sums>;

// Products of codes up to 15 with numbers of x, neighbours added up.
HWY_INLINE hn::Vec<Pairs> MulPairs(hn::Vec<Bytes> codes, hn::Vec<Signed> x) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  return hn::Vec<Pairs>{_mm256_maddubs_epi16(codes.raw, x.raw)};
#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_SSSE3
  return hn::Vec<Pairs>{_mm_maddubs_epi16(codes.raw, x.raw)};
#else
  const Pairs d;
  const auto c = hn::BitCast(d, codes), v = hn::BitCast(d, x);
  const auto even = hn::Mul(hn::And(c, hn::Set(d, 255)), hn::ShiftRight<8>(hn::ShiftLeft<8>(v)));
  return hn::Add(even, hn::Mul(hn::ShiftRight<8>(c), hn::ShiftRight<8>(v)));
#endif
}

// The lanes of sums[i] are parts of sum_k x[m + i, k] code[k], for MR rows of x. The row `ahead` is fetched meanwhile.
template <int MR>
HWY_INLINE void Column(const LinearI4Args& a, int64_t m, const uint8_t* w, const uint8_t* ahead, SumsVec* sums) {
  const Bytes d;
  const Signed ds;
  const Sums d32;
  // 8 sums of pairs, each up to 2 15 127, fit int16: a lane gets as many fewer groups as vectors are shorter.
  const int64_t narrow = 4 * kGroup * static_cast<int64_t>(hn::Lanes(d)) / kHalf;
  const auto low = hn::Set(d, 15);
  const int8_t* x = a.x + m * a.K;
  for (int i = 0; i < MR; i++) sums[i] = hn::Zero(d32);
  for (int64_t k0 = 0; k0 < a.K; k0 += narrow) {
    hn::Vec<Pairs> acc[MR];
    for (int i = 0; i < MR; i++) acc[i] = hn::Zero(Pairs());
    for (int64_t k = k0; k < std::min(a.K, k0 + narrow); k += kGroup) {
      if (k / 2 % kCacheLine == 0) hwy::Prefetch(ahead + k / 2);
      for (int64_t b = 0; b < kHalf; b += static_cast<int64_t>(hn::Lanes(d))) {
        const auto codes = hn::LoadU(d, w + k / 2 + b);
        const auto first = hn::And(codes, low);
        const auto second = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(Pairs(), codes))), low);
        for (int i = 0; i < MR; i++) {
          acc[i] = hn::Add(acc[i], MulPairs(first, hn::LoadU(ds, x + i * a.K + k + b)));
          acc[i] = hn::Add(acc[i], MulPairs(second, hn::LoadU(ds, x + i * a.K + k + kHalf + b)));
        }
      }
    }
    for (int i = 0; i < MR; i++) {
      auto more = hn::Zero(d32);  // where a target has sums of pairs, all is in the result
      const auto sum = hn::ReorderWidenMulAccumulate(d32, acc[i], hn::Set(Pairs(), 1), sums[i], more);
      sums[i] = hn::Add(sum, more);
    }
  }
}

template <class D>
HWY_INLINE hn::Vec<hn::Full128<int32_t> > InFour(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return InFour(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// out[j] = the sum of the lanes of the j-th vector.
HWY_INLINE void AddUp(SumsVec a, SumsVec b, SumsVec c, SumsVec e, int32_t* out) {
  const hn::Full128<int32_t> d;
  const hn::Repartition<uint64_t, decltype(d)> two;
  const auto add = [&](SumsVec one, SumsVec other) HWY_ATTR {
    const auto v = InFour(Sums(), one), w = InFour(Sums(), other);
    return hn::BitCast(two, hn::Add(hn::InterleaveLower(d, v, w), hn::InterleaveUpper(d, v, w)));
  };
  const auto ab = add(a, b), ce = add(c, e);
  const auto lower = hn::BitCast(d, hn::InterleaveLower(two, ab, ce));
  hn::StoreU(hn::Add(lower, hn::BitCast(d, hn::InterleaveUpper(two, ab, ce))), d, out);
}
#endif

// MR rows of x times rows [n, end) of w, at most kPeak of them. offset[m] is 15 times the sum of row m of x.
template <int MR>
void Tile(const LinearI4Args& a, const int32_t* offset, int64_t m, int64_t n, int64_t end) {
  float peaks[MR];
  std::fill_n(peaks, MR, -std::numeric_limits<float>::infinity());
  const int64_t blocks = (a.N + a.kPeak - 1) / a.kPeak, block = n / a.kPeak;
  for (; n < end; n += kTileCols) {
    const int64_t cols = std::min<int64_t>(kTileCols, end - n);
    float scale[kTileCols];
    SumsVec sums[kTileCols][MR];
    for (int j = 0; j < kTileCols; j++) {  // the last ones again where there are less
      const int64_t r = RowOf(a, std::min(n + j, end - 1)), ahead = RowOf(a, std::min(n + j + kAhead, a.N - 1));
      Column<MR>(a, m, a.w + r * (a.K / 2), a.w + ahead * (a.K / 2), sums[j]);
      scale[j] = a.scale[r];
    }
    for (int i = 0; i < MR; i++) {
      int32_t sum[kTileCols];
      float out[kTileCols];
      AddUp(sums[0][i], sums[1][i], sums[2][i], sums[3][i], sum);
      for (int j = 0; j < kTileCols; j++) out[j] = static_cast<float>(2 * sum[j] - offset[m + i]) * scale[j];
      for (int j = 0; j < kTileCols; j++) peaks[i] = std::max(peaks[i], out[j]);
      std::copy_n(out, cols, a.out.f32(m + i, n));
    }
  }
  for (int i = 0; i < MR && a.peaks; i++) a.peaks[(m + i) * blocks + block] = peaks[i];
}

}  // namespace

// All rows of x times rows [n, end) of w, whole blocks of kPeak but for the last. The rows are spread evenly over
// tiles.
void MultiplyI4(const LinearI4Args& a, const int32_t* offset, int64_t n, int64_t end) {
  static constexpr void (*kTiles[])(const LinearI4Args&, const int32_t*, int64_t, int64_t, int64_t) = {
      Tile<1>, Tile<2>, Tile<3>, Tile<4>, Tile<5>, Tile<6>, Tile<7>, Tile<8>};
  static_assert(std::size(kTiles) == kTileRows);
  const int64_t tiles = (a.M + kTileRows - 1) / kTileRows;
  for (int64_t t = 0; t < tiles; t++) {
    const int64_t m = a.M * t / tiles;
    const auto tile = kTiles[a.M * (t + 1) / tiles - m - 1];
    for (int64_t first = n; first < end; first += a.kPeak) tile(a, offset, m, first, std::min(end, first + a.kPeak));
  }
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaring::cpu {

HWY_EXPORT(MultiplyI4);

// Memory traffic: the rows of w once, N K / 2 bytes; those of a block stay in the second-level cache for all rows of x.
void linear_i4(const LinearI4Args& args, Stream& stream) {
  check(args);
  if (args.M == 0 || args.N == 0) return;
  constexpr int64_t kTask = 1 << 15;  // bytes of w that are worth a task
  std::vector<int32_t> offset(static_cast<size_t>(args.M));
  for (int64_t m = 0; m < args.M; m++) {
    offset[static_cast<size_t>(m)] = 15 * std::accumulate(args.x + m * args.K, args.x + (m + 1) * args.K, 0);
  }
  const int64_t cols = std::max<int64_t>(1, kTask / (args.kPeak * args.K / 2)) * args.kPeak;
  pool_of(stream).parallel_for((args.N + cols - 1) / cols, [&](int64_t i) {
    HWY_DYNAMIC_DISPATCH(MultiplyI4)(args, offset.data(), i * cols, std::min(args.N, (i + 1) * cols));
  });
}

}  // namespace deltaring::cpu
#endif
