#include "backends/cuda/aligned.h"
#include "backends/cuda/device/element.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/ops.h"
#include "backends/cuda/rows.h"

namespace deltaring::cuda {

namespace {

constexpr int kCopyThreads = 256;

// V rows of `words` words each; strides count words.
template <class Word>
__device__ void copy_rows(const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t V,
                          int64_t words) {
  for (int64_t i = threadIdx.x; i < V * words; i += kCopyThreads) {
    const int64_t v = i / words, w = i % words;
    static_cast<Word*>(to)[v * to_stride + w] = static_cast<const Word*>(from)[v * from_stride + w];
  }
}

// Grid: the value heads of each row.
__global__ __launch_bounds__(kCopyThreads) void restore_kernel(const __grid_constant__ SnapshotCommitArgs a,
                                                               const bool wide) {
  const int64_t Hv = a.state.shape[1], V = a.state.shape[2], K = a.state.shape[3], head = blockIdx.x % Hv;
  const int64_t b = blockIdx.x / Hv;
  const int32_t seat = a.rows.seat[b], kept = a.kept[b];
  if (seat < 0 || seat >= a.state.shape[0] || kept <= 0 || kept > a.snapshots.shape[1]) return;
  const void* from = address_in(a.snapshots, seat, kept - 1, head);
  void* to = address_in(a.state, seat, head);
  const int64_t size = static_cast<int64_t>(size_of(a.state.dtype)), from_stride = a.snapshots.stride[3] * size,
                to_stride = a.state.stride[2] * size;
  if (wide) {
    copy_rows<uint4>(from, from_stride / 16, to, to_stride / 16, V, K * size / 16);
  } else if (size == 4) {
    copy_rows<uint32_t>(from, from_stride / 4, to, to_stride / 4, V, K);
  } else {
    copy_rows<uint16_t>(from, from_stride / 2, to, to_stride / 2, V, K);
  }
}

}  // namespace

// Bytes of a row that keeps a token: one state in, one out.
void snapshot_commit(const SnapshotCommitArgs& args, Stream& stream) {
  SnapshotCommitArgs views = args;
  const StandIn seatless(0);
  views.rows = seatless.rows();
  check(views);
  check_rows("snapshot_commit", args.rows,
             {.op = RowOp::seats, .tokens = 0, .longest = 0, .seats = args.state.shape[0]});
  const int64_t heads = args.rows.count * args.state.shape[1];
  if (heads == 0) return;
  const bool wide = aligned_rows(args.state) && aligned_rows(args.snapshots);
  restore_kernel<<<grid_of("snapshot_commit", heads), kCopyThreads, 0, cuda_stream(stream).get()>>>(args, wide);
  check_launch("snapshot_commit");
}

}  // namespace deltaring::cuda
