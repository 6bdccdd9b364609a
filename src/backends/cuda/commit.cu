#include "backends/cuda/launch.h"
#include "backends/cuda/ops.h"

namespace deltaring::cuda {

namespace {

constexpr int kCommitThreads = 128;

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

}  // namespace

// Bytes: 8 + 48 a row.
void commit(const CommitArgs& args, Stream& stream) {
  check_pointers(args);
  if (args.count == 0) return;
  const unsigned blocks = grid_of("commit", (int64_t{args.count} + kCommitThreads - 1) / kCommitThreads);
  commit_kernel<<<blocks, kCommitThreads, 0, cuda_stream(stream).get()>>>(args);
  check_launch("commit");
}

}  // namespace deltaring::cuda
