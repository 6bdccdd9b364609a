#include <algorithm>
#include <iterator>
#include <vector>

#include "backends/cpu/linear_plan.h"
#include "backends/cpu/ops.h"
#include "backends/cpu/products.h"
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

// Product p and where its tasks stand among those of all products.
struct Share {
  Product p;
  int64_t first_pack, first_task;
};

// The share that task i belongs to, whose tasks begin at `first`.
const Share& share_of(const std::vector<Share>& shares, int64_t Share::*first, int64_t i) {
  return *std::prev(std::ranges::upper_bound(shares, i, {}, first));
}

}  // namespace

// Memory traffic: w once for every kMaxRows rows of x, x once for every kMaxCols rows of w (from cache), out once.
void multiply(std::span<const LinearArgs> products, Stream& stream) {
  std::vector<Share> shares;
  int64_t packs = 0, tasks = 0, floats = 0, work = 0;
  for (const LinearArgs& args : products) {
    const int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.w.N();
    if (M == 0 || N == 0) continue;
    const int64_t row_tasks = (M + kMaxRows - 1) / kMaxRows;
    const Product p{.args = args, .M = M, .N = N, .K = K, .rows = (M + row_tasks - 1) / row_tasks, .packed_x = nullptr};
    shares.push_back({.p = p, .first_pack = packs, .first_task = tasks});
    packs += p.row_tasks(), tasks += p.row_tasks() * p.col_tasks();
    floats += p.packed_size(), work += M * N * K;
  }
  if (shares.empty()) return;
  const auto packed = hwy::AllocateAligned<float>(floats);
  if (!packed) fail(ErrorKind::out_of_memory, "linear: no memory for {} floats, a copy of x; use fewer rows", floats);
  floats = 0;
  for (Share& share : shares) share.p.packed_x = packed.get() + floats, floats += share.p.packed_size();

  const auto pack = [&shares](int64_t i) {
    const Share& share = share_of(shares, &Share::first_pack, i);
    HWY_DYNAMIC_DISPATCH(PackRows)(share.p, (i - share.first_pack) * share.p.rows);
  };
  const auto compute = [&shares](int64_t i) {  // row tasks innermost: they share weights
    const Share& share = share_of(shares, &Share::first_task, i);
    const Product& p = share.p;
    const int64_t task = i - share.first_task;
    HWY_DYNAMIC_DISPATCH(MultiplyBlock)(p, task % p.row_tasks() * p.rows, task / p.row_tasks() * kMaxCols);
  };
  if (work <= kInlineProduct) {
    for (int64_t i = 0; i < packs; i++) pack(i);
    for (int64_t i = 0; i < tasks; i++) compute(i);
  } else {
    pool_of(stream).parallel_for(packs, pack);
    pool_of(stream).parallel_for(tasks, compute);
  }
}

void linear(const LinearArgs& args, Stream& stream) {
  check(args);
  multiply({&args, 1}, stream);
}

}  // namespace deltaring::cpu
#endif
