#include <cub/block/block_scan.cuh>

#include "backends/cuda/launch.h"
#include "backends/cuda/ops.h"

namespace deltaring::cuda {

namespace {

constexpr int kCommitThreads = 128, kOrderThreads = 1024;

// What check(CommitArgs) asks of a row.
__device__ bool possible(const CommitArgs& a, int32_t b) {
  const int64_t folded = a.folded[b], fold_to = a.fold_to[b], first = a.first[b], kept = a.kept[b];
  return kept >= 0 && 0 <= folded && folded <= fold_to && first >= 0 && first <= kLastPosition &&
         fold_to <= first + kept;
}

__global__ __launch_bounds__(kCommitThreads) void commit_kernel(const CommitArgs a) {
  const int32_t b = blockIdx.x * kCommitThreads + threadIdx.x;
  if (b < a.count && a.seat[b] >= 0 && possible(a, b)) move_cursor(a, b);
}

// Rows of each kind of work.
struct Kinds {
  int32_t of[kKindsOfWork];
};
struct SumOfKinds {
  __device__ Kinds operator()(const Kinds& a, const Kinds& b) const {
    Kinds sum;
#pragma unroll
    for (int kind = 0; kind < kKindsOfWork; kind++) sum.of[kind] = a.of[kind] + b.of[kind];
    return sum;
  }
};

// The same by one block, each thread some rows that lie together, and their order.
__global__ __launch_bounds__(kOrderThreads) void commit_and_order_kernel(const CommitArgs a) {
  using Scan = cub::BlockScan<Kinds, kOrderThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage scan;
  const int32_t each = (a.count + kOrderThreads - 1) / kOrderThreads;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * each, end = min(first + each, a.count);
  Kinds turn{}, all;  // how many are this thread's, then its first turn of each kind
  for (int32_t b = first; b < end; b++) {
    if (a.seat[b] >= 0 && possible(a, b)) move_cursor(a, b);
    const int of_row = kind_of_work(a, b);
#pragma unroll
    for (int kind = 0; kind < kKindsOfWork; kind++) turn.of[kind] += kind == of_row;
  }
  Scan(scan).ExclusiveScan(turn, turn, Kinds{}, SumOfKinds(), all);
#pragma unroll
  for (int kind = 1, before = 0; kind < kKindsOfWork; kind++) turn.of[kind] += before += all.of[kind - 1];
  for (int32_t b = first; b < end; b++) {
    const int of_row = kind_of_work(a, b);
#pragma unroll
    for (int kind = 0; kind < kKindsOfWork; kind++) {
      if (kind == of_row) a.order[turn.of[kind]++] = b;
    }
  }
}

}  // namespace

// Bytes: 8 + 48 a row, and 4 with an order.
void commit(const CommitArgs& args, Stream& stream) {
  check_pointers(args);
  if (args.count == 0) return;
  if (args.order) {
    commit_and_order_kernel<<<1, kOrderThreads, 0, cuda_stream(stream).get()>>>(args);
  } else {
    const unsigned blocks = grid_of("commit", (int64_t{args.count} + kCommitThreads - 1) / kCommitThreads);
    commit_kernel<<<blocks, kCommitThreads, 0, cuda_stream(stream).get()>>>(args);
  }
  check_launch("commit");
}

}  // namespace deltaring::cuda
