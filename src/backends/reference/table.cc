#include "backends/reference/table.h"

#include "backends/reference/ops.h"

namespace deltaring {

const OpTable& reference_ops() {
  static constexpr OpTable table{
      .name = "reference",
      .make_stream = [](int) { return std::make_unique<Stream>(); },
      .embedding = reference::embedding,
      .linear = reference::linear,
      .linear_i4 = reference::linear_i4,
      .contenders = reference::contenders,
      .swiglu = reference::swiglu,
      .moe_route = reference::moe_route,
      .moe_experts = reference::moe_experts,
      .rms_norm = reference::rms_norm,
      .gated_rms_norm = reference::gated_rms_norm,
      .rope = reference::rope,
      .kv_append = reference::kv_append,
      .attention = reference::attention,
      .conv = reference::conv,
      .gdn_gates = reference::gdn_gates,
      .gdn_verify = reference::gdn_verify,
      .gdn_prefill = reference::gdn_prefill,
      .gdn_fold = reference::gdn_fold,
      .snapshot_verify = reference::snapshot_verify,
      .snapshot_commit = reference::snapshot_commit,
      .commit = reference::commit,
      .seat_copy = reference::seat_copy,
      .seat_pack = reference::seat_pack,
      .seat_unpack = reference::seat_unpack,
      .argmax = reference::argmax,
      .probabilities = reference::probabilities,
      .penalties = reference::penalties,
      .log_probabilities = reference::log_probabilities,
  };
  return table;
}

}  // namespace deltaring
