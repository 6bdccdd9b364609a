#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "backends/cpu/ops.h"
#include "backends/cpu/packed_i4.h"
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

// Whether codes and numbers of 8 bits can be multiplied into sums of 32 bits at once (AVX512-VNNI): the target may, and
// the machine does.
#undef DELTARING_CPU_QUADS
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3 && (HWY_COMPILER_GCC || HWY_COMPILER_CLANG)
#define DELTARING_CPU_QUADS 1
bool HasQuads() {
  static const bool has = __builtin_cpu_supports("avx512vnni");
  return has;
}
#else
#define DELTARING_CPU_QUADS 0
constexpr bool HasQuads() { return false; }
#endif

constexpr int kTileRows = 8;  // of x: their sums stay in registers while a row of w passes
constexpr int64_t kGroup = LinearI4Args::kGroup, kHalf = kGroup / 2;
constexpr int64_t kAhead = 8;  // rows of w that are brought into the cache early
constexpr int kMostX = LinearI4Args::kMostX;

HWY_INLINE int64_t RowOf(const LinearI4Args& a, int64_t n) { return a.rows ? a.rows[n] : n; }

#if HWY_TARGET == HWY_SCALAR
using SumsVec = int32_t;
constexpr int kTileCols = 4;

}  // namespace

void PackI4(const LinearI4Args&, PackedI4&) {}

namespace {
// sums[i] = sum of (x + v + kMostX + 8)(y + u) - x y - (kMostX + 8) y over the pairs of row m + i.
template <int MR>
HWY_INLINE void Column(const LinearI4Args& a, const PackedI4&, int64_t m, const uint8_t* w, const uint8_t*,
                       SumsVec* sums) {
  for (int i = 0; i < MR; i++) {
    sums[i] = pairs_of_i4(w, a.K);
    for (int64_t k = 0; k < a.K; k++) {
      const uint8_t codes = w[k / kGroup * kHalf + k % kHalf];
      sums[i] += a.x[(m + i) * a.K + k] * ((k % kGroup < kHalf ? codes & 15 : codes >> 4) - 8);
    }
  }
}

HWY_INLINE void Finish(const SumsVec (&sums)[kTileCols], const int32_t* more, int32_t x, const float* scale, float* out,
                       float* peaks) {
  for (int j = 0; j < kTileCols; j++) {
    out[j] = static_cast<float>(2 * (sums[j] - more[j]) + x) * scale[j];
    peaks[j] = std::max(peaks[j], out[j]);
  }
}
#else
using Bytes = hn::CappedTag<uint8_t, kHalf>;
using Signed = hn::RebindToSigned<Bytes>;
using Pairs = hn::Repartition<int16_t, Bytes>;
using Sums = hn::Repartition<int32_t, Bytes>;
using SumsVec = hn::Vec<Sums>;
constexpr int kTileCols = hn::MaxLanes(Sums()) < 8 ? 4 : 8;  // whose sums are added up together

// Products of numbers of 8 bits, neighbours added up; no two neighbours' sum leaves int16.
HWY_INLINE hn::Vec<Pairs> MulPairs(hn::Vec<Bytes> x, hn::Vec<Signed> y) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  return hn::Vec<Pairs>{_mm256_maddubs_epi16(x.raw, y.raw)};
#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_SSSE3
  return hn::Vec<Pairs>{_mm_maddubs_epi16(x.raw, y.raw)};
#else
  const Pairs d;
  const auto byte = hn::Set(d, 255), u = hn::BitCast(d, x), v = hn::BitCast(d, y);
  const auto even = hn::Mul(hn::And(u, byte), hn::ShiftRight<8>(hn::ShiftLeft<8>(v)));
  return hn::Add(even, hn::Mul(hn::And(hn::ShiftRight<8>(u), byte), hn::ShiftRight<8>(v)));
#endif
}

// K behind one sum of 16 bits. A lane gets 16 products of pairs, as many fewer groups as vectors are shorter. What is
// left of a product when its x y and (kMostX + 8) y are gone, x u + y v + (kMostX + 8) u + u v with u and v in [-8, 7],
// is between -24 kMostX - 64 and 21 kMostX + 105: 16 of them fit int16. On the way there sums may wrap around.
HWY_INLINE int64_t NarrowK() { return 8 * kGroup * static_cast<int64_t>(hn::Lanes(Bytes())) / kHalf; }
static_assert(16 * (24 * kMostX + 64) <= 32768 && 16 * (21 * kMostX + 105) < 32768);
static_assert(2 * (2 * kMostX + 15) * (kMostX + 8) < 32768);  // two products at once

}  // namespace

// Rows of x as pairs want them: of each group x + kMostX, to which codes v + 8 are added, then y - 8, to which u + 8
// are; and what the sums of products are to start with.
void PackI4(const LinearI4Args& a, PackedI4& out) {
  if (HasQuads()) return;  // which take x as it is
  const Bytes d;
  const Signed ds;
  const Pairs d16;
  const int64_t narrow = NarrowK(), lanes = static_cast<int64_t>(hn::Lanes(d16));
  out.starts = (a.K + narrow - 1) / narrow * lanes;
  out.x.resize(static_cast<size_t>(a.M * a.K));
  out.start.resize(static_cast<size_t>(a.M * out.starts));
  for (int64_t m = 0; m < a.M; m++) {
    int16_t* start = out.start.data() + m * out.starts;
    for (int64_t k0 = 0; k0 < a.K; k0 += narrow, start += lanes) {
      auto sum = hn::Zero(d16);
      for (int64_t k = k0; k < std::min(a.K, k0 + narrow); k += kGroup) {
        for (int64_t b = k; b < k + kHalf; b += static_cast<int64_t>(hn::Lanes(d))) {
          const auto x = hn::BitCast(d, hn::LoadU(ds, a.x + m * a.K + b)), most = hn::Set(d, kMostX);
          const auto y = hn::LoadU(ds, a.x + m * a.K + b + kHalf);
          sum = hn::Sub(sum, MulPairs(hn::Add(x, hn::Set(d, kMostX + 8)), y));
          hn::StoreU(hn::Add(x, most), d, out.x.data() + m * a.K + b);
          hn::StoreU(hn::BitCast(d, hn::Sub(y, hn::Set(ds, 8))), d, out.x.data() + m * a.K + b + kHalf);
        }
      }
      hn::StoreU(sum, d16, start);
    }
  }
}

namespace {

// The lanes of sums[i] are parts of what row m + i of x and the row of codes make, their pairs_of_i4 included, for MR
// rows of x. The row `ahead` is fetched meanwhile.
template <int MR>
HWY_INLINE void Column(const LinearI4Args& a, const PackedI4& packed, int64_t m, const uint8_t* w, const uint8_t* ahead,
                       SumsVec* sums) {
  const Bytes d;
  const Pairs d16;
  const Sums d32;
  const int64_t narrow = NarrowK();
  const auto low = hn::Set(d, 15);
  const uint8_t* x = packed.x.data() + m * a.K;
  const int16_t* start = packed.start.data() + m * packed.starts;
  for (int i = 0; i < MR; i++) sums[i] = hn::Zero(d32);
  for (int64_t k0 = 0; k0 < a.K; k0 += narrow, start += hn::Lanes(d16)) {
    hn::Vec<Pairs> acc[MR];
    for (int i = 0; i < MR; i++) acc[i] = hn::LoadU(d16, start + i * packed.starts);
    const auto group = [&](int64_t k) HWY_ATTR {
      for (int64_t b = 0; b < kHalf; b += static_cast<int64_t>(hn::Lanes(d))) {
        const auto codes = hn::LoadU(d, w + k / 2 + b);
        const auto below = hn::And(codes, low);
        const auto above = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, codes))), low);
        for (int i = 0; i < MR; i++) {
          const uint8_t* xi = x + i * a.K + k + b;
          const auto by = hn::BitCast(Signed(), hn::Add(below, hn::LoadU(d, xi + kHalf)));
          acc[i] = hn::Add(acc[i], MulPairs(hn::Add(above, hn::LoadU(d, xi)), by));
        }
      }
    };
    const int64_t end = std::min(a.K, k0 + narrow);
    int64_t k = k0;
    for (; k + 2 * kGroup <= end; k += 2 * kGroup) {  // a cache line
      hwy::Prefetch(ahead + k / 2);
      group(k), group(k + kGroup);
    }
    if (k < end) group(k);
    for (int i = 0; i < MR; i++) {
      auto more = hn::Zero(d32);  // where a target has sums of pairs, all is in the result
      const auto sum = hn::ReorderWidenMulAccumulate(d32, acc[i], hn::Set(d16, 1), sums[i], more);
      sums[i] = hn::Add(sum, more);
    }
  }
}

#if DELTARING_CPU_QUADS
// The lanes of sums[i] are parts of row m + i of x times the row of codes, for MR rows of x.
template <int MR>
HWY_INLINE void QuadColumn(const LinearI4Args& a, int64_t m, const uint8_t* w, const uint8_t* ahead, SumsVec* sums) {
  const Bytes d;
  const auto low = hn::Set(d, 15);
  SumsVec below[MR], above[MR];
  for (int i = 0; i < MR; i++) below[i] = above[i] = hn::Zero(Sums());
  for (int64_t k = 0; k < a.K; k += kGroup) {
    if (k % (2 * kGroup) == 0) hwy::Prefetch(ahead + k / 2);
    const auto codes = hn::LoadU(d, w + k / 2);
    const auto u = hn::And(codes, low);
    const auto v = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(Pairs(), codes))), low);
    for (int i = 0; i < MR; i++) {
      const auto* x = reinterpret_cast<const __m256i_u*>(a.x + (m + i) * a.K + k);
      asm("%{evex%} vpdpbusd %2, %1, %0" : "+v"(below[i].raw) : "v"(u.raw), "m"(x[0]));
      asm("%{evex%} vpdpbusd %2, %1, %0" : "+v"(above[i].raw) : "v"(v.raw), "m"(x[1]));
    }
  }
  for (int i = 0; i < MR; i++) sums[i] = hn::Add(below[i], above[i]);
}
#endif

// The sums of all lanes of as many vectors as one of the results has lanes, in their order.
template <class D, class V = hn::Vec<D> >
HWY_INLINE V SumsOf(D d, const V* v) {
  const hn::Repartition<uint64_t, D> two;
  const auto pairs = [&](V a, V b) HWY_ATTR {
    return hn::BitCast(two, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto fours = [&](const V* of) HWY_ATTR {  // of each block of four lanes
    const auto ab = pairs(of[0], of[1]), ce = pairs(of[2], of[3]);
    return hn::Add(hn::BitCast(d, hn::InterleaveLower(two, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(two, ab, ce)));
  };
  if constexpr (hn::MaxLanes(d) == 4) {
    return fours(v);
  } else {
    static_assert(hn::MaxLanes(d) == 8);
    const V low = fours(v), high = fours(v + 4);
    return hn::Add(hn::ConcatLowerLower(d, high, low), hn::ConcatUpperUpper(d, high, low));
  }
}

// out[j] is what the j-th column comes to, x the sum of the numbers of its row of x: 2 w - 15 = 2 (w - 8) + 1. `more`
// is what sums have beyond products with w - 8. Peaks of the columns before may grow.
HWY_INLINE void Finish(const SumsVec (&sums)[kTileCols], const int32_t* more, int32_t x, const float* scale, float* out,
                       float* peaks) {
  const Sums d;
  const hn::RebindToFloat<Sums> df;
  const auto whole = hn::Add(hn::ShiftLeft<1>(hn::Sub(SumsOf(d, sums), hn::LoadU(d, more))), hn::Set(d, x));
  const auto product = hn::Mul(hn::ConvertTo(df, whole), hn::LoadU(df, scale));
  hn::StoreU(product, df, out);
  hn::StoreU(hn::Max(product, hn::LoadU(df, peaks)), df, peaks);
}
#endif

// MR rows of x times rows [n, end) of w, at most kPeak of them. kQuads: by QuadColumn.
template <int MR, bool kQuads>
void Tile(const LinearI4Args& a, const PackedI4& packed, int64_t m, int64_t n, int64_t end) {
  float peaks[MR][kTileCols];
  std::fill_n(peaks[0], MR * kTileCols, -std::numeric_limits<float>::infinity());
  const int64_t blocks = (a.N + a.kPeak - 1) / a.kPeak, block = n / a.kPeak;
  for (; n < end; n += kTileCols) {
    const int64_t cols = std::min<int64_t>(kTileCols, end - n);
    float scale[kTileCols];
    int32_t pairs[kTileCols];
    SumsVec sums[kTileCols][MR];
    for (int j = 0; j < kTileCols; j++) {  // the last ones again where there are less
      const int64_t r = RowOf(a, std::min(n + j, end - 1));
      const uint8_t *w = a.w + r * (a.K / 2), *ahead = a.w + RowOf(a, std::min(n + j + kAhead, a.N - 1)) * (a.K / 2);
#if DELTARING_CPU_QUADS
      if constexpr (kQuads) QuadColumn<MR>(a, m, w, ahead, sums[j]);
#endif
      if constexpr (!kQuads) Column<MR>(a, packed, m, w, ahead, sums[j]);
      scale[j] = a.scale[r], pairs[j] = a.pairs[r];
    }
    for (int i = 0; i < MR; i++) {
      SumsVec of_row[kTileCols];
      for (int j = 0; j < kTileCols; j++) of_row[j] = sums[j][i];
      const int32_t x = packed.sum[static_cast<size_t>(m + i)];
      if (kQuads) std::fill_n(pairs, kTileCols, 8 * x);
      float some[kTileCols], *const to = a.out.f32(m + i, n);
      Finish(of_row, pairs, x, scale, cols == kTileCols ? to : some, peaks[i]);
      if (cols < kTileCols) std::copy_n(some, cols, to);
    }
  }
  for (int i = 0; i < MR && a.peaks; i++)
    a.peaks[(m + i) * blocks + block] = *std::max_element(peaks[i], peaks[i] + kTileCols);
}

}  // namespace

// All rows of x times rows [n, end) of w, whole blocks of kPeak but for the last. The rows are spread evenly over
// tiles.
void MultiplyI4(const LinearI4Args& a, const PackedI4& packed, int64_t n, int64_t end) {
  using Rows = void (*)(const LinearI4Args&, const PackedI4&, int64_t, int64_t, int64_t);
  constexpr auto tiles_of = []<bool kQuads>(std::bool_constant<kQuads>) {
    return std::array<Rows, kTileRows>{Tile<1, kQuads>, Tile<2, kQuads>, Tile<3, kQuads>, Tile<4, kQuads>,
                                       Tile<5, kQuads>, Tile<6, kQuads>, Tile<7, kQuads>, Tile<8, kQuads>};
  };
  static const auto kTiles =
      HasQuads() ? tiles_of(std::bool_constant<DELTARING_CPU_QUADS != 0>()) : tiles_of(std::false_type());
  const int64_t tiles = (a.M + kTileRows - 1) / kTileRows;
  for (int64_t t = 0; t < tiles; t++) {
    const int64_t m = a.M * t / tiles;
    const auto tile = kTiles[a.M * (t + 1) / tiles - m - 1];
    for (int64_t first = n; first < end; first += a.kPeak) tile(a, packed, m, first, std::min(end, first + a.kPeak));
  }
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaring::cpu {

HWY_EXPORT(PackI4);
HWY_EXPORT(MultiplyI4);

// Memory traffic: the rows of w once, N K / 2 bytes; those of a block stay in the second-level cache for all rows of x.
void linear_i4(const LinearI4Args& args, Stream& stream) {
  check(args);
  if (args.M == 0 || args.N == 0) return;
  constexpr int64_t kTask = 1 << 15;  // bytes of w that are worth a task
  PackedI4 packed;
  for (int64_t m = 0; m < args.M; m++) {
    packed.sum.push_back(std::accumulate(args.x + m * args.K, args.x + (m + 1) * args.K, 0));
  }
  HWY_DYNAMIC_DISPATCH(PackI4)(args, packed);
  const int64_t cols = std::max<int64_t>(1, kTask / (args.kPeak * args.K / 2)) * args.kPeak;
  pool_of(stream).parallel_for((args.N + cols - 1) / cols, [&](int64_t i) {
    HWY_DYNAMIC_DISPATCH(MultiplyI4)(args, packed, i * cols, std::min(args.N, (i + 1) * cols));
  });
}

}  // namespace deltaring::cpu
#endif
