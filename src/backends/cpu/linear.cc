#include <algorithm>

#include "backends/cpu/linear_plan.h"
#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"
#include "base/error.h"
#include "hwy/aligned_allocator.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "backends/cpu/linear-inl.h"

#if HWY_ONCE
namespace deltaring::cpu {

HWY_EXPORT(PackRows);
HWY_EXPORT(MultiplyBlock);

namespace {
constexpr int64_t kInlineProduct = 1 << 17;  // multiply-adds that take less time than waking a thread, 10 us
}

// Memory traffic: w once for every kMaxRows rows of x, x once for every kMaxCols rows of w (from cache), out once.
void linear(const LinearArgs& args, Stream& stream) {
  check(args);
  const int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.w.shape[0];
  if (M == 0 || N == 0) return;
  const int64_t chunks = (K + kChunk - 1) / kChunk, row_tasks = (M + kMaxRows - 1) / kMaxRows;
  const auto packed = hwy::AllocateAligned<float>(chunks * M * kChunk);
  if (!packed) fail(ErrorKind::out_of_memory, "linear: no memory for a copy of x [{}, {}]; use fewer rows", M, K);
  const Product p{
      .args = args, .M = M, .N = N, .K = K, .rows = (M + row_tasks - 1) / row_tasks, .packed_x = packed.get()};

  const auto pack = [&p](int64_t task) { HWY_DYNAMIC_DISPATCH(PackRows)(p, task * p.rows); };
  const auto multiply = [&p](int64_t task) {  // row tasks innermost: they share weights
    HWY_DYNAMIC_DISPATCH(MultiplyBlock)(p, task % p.row_tasks() * p.rows, task / p.row_tasks() * kMaxCols);
  };
  const int64_t tasks = p.row_tasks() * p.col_tasks();
  if (M * N * K <= kInlineProduct) {
    for (int64_t task = 0; task < p.row_tasks(); task++) pack(task);
    for (int64_t task = 0; task < tasks; task++) multiply(task);
  } else {
    pool_of(stream).parallel_for(p.row_tasks(), pack);
    pool_of(stream).parallel_for(tasks, multiply);
  }
}

}  // namespace deltaring::cpu
#endif
