#include <algorithm>

#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/linear_i8.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kTileRows = 4, kTileCols = 2;  // eight accumulators, and the weights of a step in registers
constexpr int64_t kAhead = 8;                // rows of w that are brought into the cache early
constexpr int64_t kCacheLine = 64;

// Rows [m, m + MR) of x times rows [n, n + NR) of w; the first to touch them fetches those that come behind.
template <int MR, int NR>
HWY_INLINE void Tile(const LinearI8Args& a, int64_t m, int64_t n, [[maybe_unused]] bool first) {
  const int16_t* x = a.x + m * a.K;
  const int8_t* w = a.w + n * a.K;
  int32_t sums[MR][NR] = {};
  int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<int16_t> d16;
  const hn::Repartition<int32_t, decltype(d16)> d32;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d16));
  hn::Vec<decltype(d32)> acc[MR][NR], more[MR][NR];  // where a target has sums of pairs, all is in acc
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < NR; j++) acc[i][j] = more[i][j] = hn::Zero(d32);
  for (; k + lanes <= a.K; k += lanes) {
    if (first && k % kCacheLine == 0) {
      for (int j = 0; j < NR; j++) hwy::Prefetch(w + (kAhead + j) * a.K + k);
    }
    hn::Vec<decltype(d16)> v[NR];
    for (int j = 0; j < NR; j++) v[j] = hn::PromoteTo(d16, hn::LoadU(d8, w + j * a.K + k));
    for (int i = 0; i < MR; i++) {
      const auto xi = hn::LoadU(d16, x + i * a.K + k);
      for (int j = 0; j < NR; j++) acc[i][j] = hn::ReorderWidenMulAccumulate(d32, xi, v[j], acc[i][j], more[i][j]);
    }
  }
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < NR; j++) sums[i][j] = hn::GetLane(hn::SumOfLanes(d32, hn::Add(acc[i][j], more[i][j])));
#endif
  for (; k < a.K; k++) {
    for (int i = 0; i < MR; i++)
      for (int j = 0; j < NR; j++) sums[i][j] += int32_t{x[i * a.K + k]} * w[j * a.K + k];
  }
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < NR; j++) *a.out.f32(m + i, n + j) = static_cast<float>(sums[i][j]) * a.scale[n + j];
}

template <int MR>
HWY_INLINE void TileRow(const LinearI8Args& a, int64_t m, int64_t n, int64_t end) {
  const bool first = m == 0;
  for (; n + kTileCols <= end; n += kTileCols) Tile<MR, kTileCols>(a, m, n, first);
  for (; n < end; n++) Tile<MR, 1>(a, m, n, first);
}

}  // namespace

// All rows of x times rows [n, end) of w.
void MultiplyI8(const LinearI8Args& a, int64_t n, int64_t end) {
  int64_t m = 0;
  for (; m + kTileRows <= a.M; m += kTileRows) TileRow<kTileRows>(a, m, n, end);
  if (a.M - m == 3) TileRow<3>(a, m, n, end);
  if (a.M - m == 2) TileRow<2>(a, m, n, end);
  if (a.M - m == 1) TileRow<1>(a, m, n, end);
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaring::cpu {

HWY_EXPORT(MultiplyI8);

// Memory traffic: w once, N K bytes; the columns of a task stay in the second-level cache for all rows of x.
void linear_i8(const LinearI8Args& args, Stream& stream) {
  check(args);
  if (args.M == 0 || args.N == 0) return;
  const int64_t cols = std::clamp<int64_t>((1 << 15) / args.K, 2, 512) & ~int64_t{1};
  pool_of(stream).parallel_for((args.N + cols - 1) / cols, [&](int64_t i) {
    HWY_DYNAMIC_DISPATCH(MultiplyI8)(args, i * cols, std::min(args.N, (i + 1) * cols));
  });
}

}  // namespace deltaring::cpu
#endif
