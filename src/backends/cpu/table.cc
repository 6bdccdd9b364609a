#include "backends/cpu/table.h"

#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"

namespace deltaring {

const OpTable& cpu_ops() {
  static constexpr OpTable table{
      .name = "cpu",
      .make_stream = [](int threads) -> std::unique_ptr<Stream> { return std::make_unique<cpu::CpuStream>(threads); },
      .embedding = cpu::embedding,
      .linear = cpu::linear,
      .linear_i4 = cpu::linear_i4,
      .contenders = cpu::contenders,
      .swiglu = cpu::swiglu,
      .moe_route = cpu::moe_route,
      .moe_experts = cpu::moe_experts,
      .rms_norm = cpu::rms_norm,
      .gated_rms_norm = cpu::gated_rms_norm,
      .rope = cpu::rope,
      .kv_append = cpu::kv_append,
      .attention = cpu::attention,
      .conv = cpu::conv,
      .gdn_gates = cpu::gdn_gates,
      .gdn_verify = cpu::gdn_verify,
      .gdn_prefill = cpu::gdn_prefill,
      .gdn_fold = cpu::gdn_fold,
      .snapshot_verify = cpu::snapshot_verify,
      .snapshot_commit = cpu::snapshot_commit,
      .commit = cpu::commit,
      .seat_copy = cpu::seat_copy,
      .seat_pack = cpu::seat_pack,
      .seat_unpack = cpu::seat_unpack,
      .argmax = cpu::argmax,
      .probabilities = cpu::probabilities,
      .penalties = cpu::penalties,
      .log_probabilities = cpu::log_probabilities,
  };
  return table;
}

}  // namespace deltaring
