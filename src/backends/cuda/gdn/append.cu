#include "backends/cuda/device/element.cuh"
#include "backends/cuda/device/gates.cuh"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/gdn/append.h"
#include "backends/cuda/launch.h"

namespace deltaring::cuda {

namespace {

constexpr int kAppendThreads = 128;

__device__ void copy_vector(const void* from, DType t, void* to, DType record, int64_t count) {
  for (int64_t e = threadIdx.x; e < count; e += kAppendThreads) store(to, record, e, load(from, t, e));
}

// g and beta of one value head.
__device__ void append_gates(const GdnVerifyArgs& a, int64_t token, int32_t seat, int64_t head, int64_t slot) {
  const int64_t G = a.g.shape[2];
  const void* g = address_in(a.g, token, head);
  float* to = float_in(a.state.record_g, seat, head, slot);
  for (int64_t i = threadIdx.x; i < G; i += kAppendThreads) {
    const float x = load(g, a.g.dtype, i);
    to[i] = a.gates.A_log ? log_decay(a.gates.A_log[head], a.gates.dt_bias[head * G + i], x) : x;
  }
  if (threadIdx.x != 0) return;
  const float b = load(address_in(a.beta, token, head), a.beta.dtype, 0);
  *float_in(a.state.record_beta, seat, head, slot) = a.gates.A_log ? sigmoid(b) : b;
}

// Grid: the key heads, then the value heads, of each row.
__global__ __launch_bounds__(kAppendThreads) void append_kernel(const __grid_constant__ GdnVerifyArgs a,
                                                                const RowRules rules) {
  const GdnState& s = a.state;
  const int64_t Hk = s.record_k.shape[1], Hv = s.record_v.shape[1], R = s.record_k.shape[2];
  const int64_t head = blockIdx.x % (Hk + Hv);
  const Row row = row_of(a.rows, rules, static_cast<int32_t>(blockIdx.x / (Hk + Hv)));
  if (row.seat < 0) return;
  for (int64_t p = max(row.first, row.fold_to); p < row.end(); p++) {
    const int64_t token = row.begin + (p - row.first), slot = p % R;
    if (head < Hk) {
      copy_vector(address_in(a.k, token, head), a.k.dtype, address_in(s.record_k, row.seat, head, slot),
                  s.record_k.dtype, s.record_k.shape[3]);
    } else {
      copy_vector(address_in(a.v, token, head - Hk), a.v.dtype, address_in(s.record_v, row.seat, head - Hk, slot),
                  s.record_v.dtype, s.record_v.shape[3]);
      append_gates(a, token, row.seat, head - Hk, slot);
    }
  }
}

}  // namespace

void append_records(const char* op, const GdnVerifyArgs& args, const RowRules& rules, CudaStream& stream) {
  const int64_t heads = args.state.record_k.shape[1] + args.state.record_v.shape[1];
  append_kernel<<<grid_of(op, args.rows.count * heads), kAppendThreads, 0, stream.get()>>>(args, rules);
  check_launch(op);
}

}  // namespace deltaring::cuda
