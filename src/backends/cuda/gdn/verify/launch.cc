#include "backends/cuda/gdn/verify/launch.h"

#include <algorithm>
#include <bit>
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

template <int N>
Strides strides_of(const View<N>& view) {
  return {view.stride[0], static_cast<int32_t>(view.stride[1]), static_cast<int32_t>(view.stride[2])};
}

int32_t small(int64_t stride) { return static_cast<int32_t>(stride); }

bool serves(const GdnState& s) {
  return aligned_rows(s.checkpoint) && aligned_rows(s.record_k) && aligned_rows(s.record_v) &&
         narrow(s.checkpoint, 1) && narrow(s.record_k, 1) && narrow(s.record_v, 1) && narrow(s.record_g, 1) &&
         narrow(s.record_beta, 1) && s.checkpoint.stride[3] == 1 && s.checkpoint.stride[2] == s.checkpoint.shape[3];
}

// What rows and state say; the tokens stay to be filled in.
VerifyDesc desc_of(const Rows& rows, const GdnState& s, int64_t grain) {
  return {.layers = 1,
          .B = rows.count,
          .T = 0,
          .Hk = s.record_k.shape[1],
          .Hv = s.checkpoint.shape[1],
          .K = s.checkpoint.shape[3],
          .V = s.checkpoint.shape[2],
          .G = s.record_g.shape[3],
          .R = s.record_k.shape[2],
          .F = grain,
          .tokens = s.record_k.dtype,
          .records = s.record_k.dtype,
          .state = s.checkpoint.dtype,
          .prefill = false,
          .exact = true,
          .aligned = serves(s)};
}

VerifyParams params_of(const VerifyPlan& plan, const Rows& rows, const GdnState& s, int64_t grain, QkNorm norm,
                       int64_t layers = 1) {
  return {.start = rows.start,
          .seat = rows.seat,
          .first = rows.first,
          .folded = rows.folded,
          .fold_to = rows.fold_to,
          .order = rows.order,
          .rows = rows.count,
          .first_part = plan.first_part,
          .parts = plan.parts,
          .part_tokens = plan.part,
          .heads = plan.heads,
          .shares = plan.shares,
          .whole = small(plan.whole),
          .values = plan.values,
          .room = plan.room,
          .seats = small(s.checkpoint.shape[0] / layers),
          .Hv = small(s.checkpoint.shape[1]),
          .group = small(s.checkpoint.shape[1] / s.record_k.shape[1]),
          .R = small(s.record_k.shape[2]),
          .log2_F = std::countr_zero(static_cast<uint32_t>(plan.grain)),
          .on_grid = grain != 0,
          .early = static_cast<uint32_t>(plan.early),
          .exact = plan.exact,
          .append = plan.appends(),
          .l2 = norm == QkNorm::l2,
          .state = s.checkpoint.data,
          .record_k = static_cast<uint16_t*>(s.record_k.data),
          .record_v = static_cast<uint16_t*>(s.record_v.data),
          .record_g = static_cast<float*>(s.record_g.data),
          .record_beta = static_cast<float*>(s.record_beta.data),
          .state_at = strides_of(s.checkpoint),
          .k_at = strides_of(s.record_k),
          .v_at = strides_of(s.record_v),
          .g_at = strides_of(s.record_g),
          .beta_at = strides_of(s.record_beta)};
}

void launch(const VerifyPlan& plan, const VerifyParams& params, DType state, CudaStream& stream) {
  const auto kernel = state == DType::f32    ? launch_tensor<DType::f32>
                      : state == DType::bf16 ? launch_tensor<DType::bf16>
                                             : launch_tensor<DType::f16>;
  kernel(plan, params, stream.get());
}

}  // namespace

VerifyPlan plan_verify(const GdnVerifyArgs& a, bool prefill, const DeviceLimits& device) {
  VerifyDesc desc = desc_of(a.rows, a.state, a.grain);
  desc.T = a.rows.longest, desc.tokens = a.q.dtype, desc.prefill = prefill, desc.exact = a.bit_exact;
  desc.aligned = desc.aligned && a.q.shape[0] <= std::numeric_limits<int32_t>::max() / 2 && aligned_rows(a.q) &&
                 aligned_rows(a.k) && aligned_rows(a.v) && aligned_rows(a.out) && narrow(a.q, 0) && narrow(a.k, 0) &&
                 narrow(a.v, 0) && narrow(a.g, 0) && narrow(a.beta, 0) && narrow(a.out, 0);
  return plan_verify(desc, device);
}

VerifyPlan plan_fold(const GdnFoldArgs& a, const DeviceLimits& device) {
  VerifyDesc desc = desc_of(a.rows, a.state, a.grain);
  desc.layers = a.layers;
  return plan_verify(desc, device);
}

void launch_verify(const VerifyPlan& plan, const GdnVerifyArgs& a, CudaStream& stream) {
  VerifyParams p = params_of(plan, a.rows, a.state, a.grain, a.norm);
  p.tokens = small(a.q.shape[0]), p.longest = a.rows.longest, p.prefill = plan.prefill;
  p.scale = a.scale != 0 ? a.scale : 1 / std::sqrt(static_cast<float>(kHead));
  p.q = static_cast<const uint16_t*>(a.q.data), p.q_token = small(a.q.stride[0]), p.q_head = small(a.q.stride[1]);
  p.k = static_cast<const uint16_t*>(a.k.data), p.k_token = small(a.k.stride[0]), p.k_head = small(a.k.stride[1]);
  p.v = static_cast<const uint16_t*>(a.v.data), p.v_token = small(a.v.stride[0]), p.v_head = small(a.v.stride[1]);
  p.g = a.g.data, p.g_token = small(a.g.stride[0]), p.g_head = small(a.g.stride[1]);
  p.beta = a.beta.data, p.beta_token = small(a.beta.stride[0]), p.beta_head = small(a.beta.stride[1]);
  p.gate_dtype = a.g.dtype, p.A_log = a.gates.A_log, p.dt_bias = a.gates.dt_bias;
  p.out = a.out.data, p.out_token = small(a.out.stride[0]), p.out_head = small(a.out.stride[1]);
  p.out_dtype = a.out.dtype;
  launch(plan, p, a.state.checkpoint.dtype, stream);
}

void launch_fold(const VerifyPlan& plan, const GdnFoldArgs& a, CudaStream& stream) {
  VerifyParams p = params_of(plan, a.rows, a.state, a.grain, a.norm, a.layers);
  p.start = nullptr;
  launch(plan, p, a.state.checkpoint.dtype, stream);
}

}  // namespace deltaring::cuda
