#include <algorithm>

#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"
#include "hwy/aligned_allocator.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "backends/cpu/linear-inl.h"

#if HWY_ONCE
namespace deltaring::cpu {

HWY_EXPORT(PackRow);
HWY_EXPORT(MultiplyBlock);

void linear(const LinearArgs& args, Stream& stream) {
  //check(args);
  const int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.w.shape[0];
  if (M == 0 || N == 0) return;
  const auto packed = hwy::AllocateAligned<float>((K + kChunk - 1) / kChunk * kChunk * M);
  const Product p{.args = args, .x = packed.get(), .M = M, .N = N, .K = K};
  const auto pack = [&](int64_t block) {
    for (int64_t m = block * kRows; m < std::min(M, (block + 1) * kRows); m++) HWY_DYNAMIC_DISPATCH(PackRow)(p, m);
  };
  const int64_t m_blocks = (M + kRows - 1) / kRows, n_blocks = (N + kCols - 1) / kCols;
  const auto multiply = [&](int64_t task) {
    HWY_DYNAMIC_DISPATCH(MultiplyBlock)(p, task % m_blocks * kRows, task / m_blocks * kCols);
  };
  pool_of(stream).parallel_for(m_blocks, pack);
  pool_of(stream).parallel_for(m_blocks * n_blocks, multiply);
}

}  // namespace deltaring::cpu
#endif
