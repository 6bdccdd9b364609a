#include "backends/cuda/gdn/verify/launch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cuda/aligned.h"

namespace deltaring::cuda {

namespace {

// Strides behind the first dimension fit 32 bits.
template <int N>
bool narrow(const View<N>& view, int from) {
  for (int d = from; d < N; d++) {
    if (std::abs(view.stride[d]) > std::numeric_limits<int32_t>::max()) return false;
  }
  return true;
}

bool dense_heads(const View<4>& state) { return state.stride[3] == 1 && state.stride[2] == state.shape[3]; }

template <int N>
Strides strides_of(const View<N>& view) {
  return {view.stride[0], static_cast<int32_t>(view.stride[1]), static_cast<int32_t>(view.stride[2])};
}

int32_t small(int64_t stride) { return static_cast<int32_t>(stride); }

}  // namespace

VerifyPlan plan_verify(const GdnVerifyArgs& a, const DeviceLimits& device) {
  const GdnState& s = a.state;
  const bool aligned = aligned_rows(a.q) && aligned_rows(a.k) && aligned_rows(a.v) && aligned_rows(a.out) &&
                       aligned_rows(s.checkpoint) && aligned_rows(s.record_k) && aligned_rows(s.record_v);
  const bool small_strides = narrow(a.q, 0) && narrow(a.k, 0) && narrow(a.v, 0) && narrow(a.g, 0) &&
                             narrow(a.beta, 0) && narrow(a.out, 0) && narrow(s.checkpoint, 1) &&
                             narrow(s.record_k, 1) && narrow(s.record_v, 1) && narrow(s.record_g, 1) &&
                             narrow(s.record_beta, 1);
  return plan_verify({.B = a.rows.count,
                      .T = a.rows.longest,
                      .Hk = s.record_k.shape[1],
                      .Hv = s.checkpoint.shape[1],
                      .K = s.checkpoint.shape[3],
                      .V = s.checkpoint.shape[2],
                      .G = s.record_g.shape[3],
                      .R = s.record_k.shape[2],
                      .F = a.grain,
                      .tokens = a.q.dtype,
                      .records = s.record_k.dtype,
                      .state = s.checkpoint.dtype,
                      .exact = a.bit_exact,
                      .aligned = aligned && small_strides && dense_heads(s.checkpoint)},
                     device);
}

void launch_verify(const VerifyPlan& plan, const GdnVerifyArgs& a, CudaStream& stream) {
  const GdnState& s = a.state;
  const VerifyParams params{
      .start = a.rows.start,
      .seat = a.rows.seat,
      .first = a.rows.first,
      .folded = a.rows.folded,
      .fold_to = a.rows.fold_to,
      .B = a.rows.count,
      .tokens = small(a.q.shape[0]),
      .seats = small(s.checkpoint.shape[0]),
      .Hv = small(s.checkpoint.shape[1]),
      .group = small(s.checkpoint.shape[1] / s.record_k.shape[1]),
      .R = small(s.record_k.shape[2]),
      .log2_F = a.grain == 8 ? 3 : 4,
      .T_max = a.rows.longest,
      .exact = plan.exact,
      .l2 = a.norm == QkNorm::l2,
      .scale = a.scale != 0 ? a.scale : 1 / std::sqrt(static_cast<float>(kHead)),
      .q = static_cast<const uint16_t*>(a.q.data),
      .k = static_cast<const uint16_t*>(a.k.data),
      .v = static_cast<const uint16_t*>(a.v.data),
      .q_token = small(a.q.stride[0]),
      .q_head = small(a.q.stride[1]),
      .k_token = small(a.k.stride[0]),
      .k_head = small(a.k.stride[1]),
      .v_token = small(a.v.stride[0]),
      .v_head = small(a.v.stride[1]),
      .g = a.g.data,
      .beta = a.beta.data,
      .g_token = small(a.g.stride[0]),
      .g_head = small(a.g.stride[1]),
      .beta_token = small(a.beta.stride[0]),
      .beta_head = small(a.beta.stride[1]),
      .gate_dtype = a.g.dtype,
      .out_dtype = a.out.dtype,
      .A_log = a.gates.A_log,
      .dt_bias = a.gates.dt_bias,
      .out = a.out.data,
      .out_token = small(a.out.stride[0]),
      .out_head = small(a.out.stride[1]),
      .state = s.checkpoint.data,
      .record_k = static_cast<uint16_t*>(s.record_k.data),
      .record_v = static_cast<uint16_t*>(s.record_v.data),
      .record_g = static_cast<float*>(s.record_g.data),
      .record_beta = static_cast<float*>(s.record_beta.data),
      .state_at = strides_of(s.checkpoint),
      .k_at = strides_of(s.record_k),
      .v_at = strides_of(s.record_v),
      .g_at = strides_of(s.record_g),
      .beta_at = strides_of(s.record_beta),
  };
  const bool direct = plan.kernel == VerifyKernel::direct;
  switch (s.checkpoint.dtype) {
    case DType::f32: return (direct ? launch_direct<DType::f32> : launch_pipeline<DType::f32>)(plan, params, stream.get());
    case DType::bf16: return (direct ? launch_direct<DType::bf16> : launch_pipeline<DType::bf16>)(plan, params, stream.get());
    case DType::f16: return (direct ? launch_direct<DType::f16> : launch_pipeline<DType::f16>)(plan, params, stream.get());
  }
}

}  // namespace deltaring::cuda
