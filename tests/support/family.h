// Small models of every kind of the family, around mini_config: what differs from a dense Qwen3.5 of plain floats.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "support/rig.h"

namespace deltaring::test {

// Five experts of which two, and a shared one of another width.
inline ModelConfig moe_config() {
  ModelConfig c = mini_config();
  c.model_type = "qwen3_5_moe_text", c.intermediate_size = 0;
  c.num_experts = 5, c.num_experts_per_tok = 2, c.moe_intermediate_size = 24, c.shared_expert_intermediate_size = 40;
  return c;
}

// Dense layers between those with experts, and weights that are not renormalised.
inline ModelConfig next_config() {
  ModelConfig c = moe_config();
  c.model_type = "qwen3_next", c.intermediate_size = 48;
  c.decoder_sparse_step = 2, c.mlp_only_layers = {3}, c.norm_topk_prob = false;
  c.linear_num_key_heads = 2, c.linear_num_value_heads = 6;
  return c;
}

// Wider than a block of scales, in both directions and never a multiple of it; some layers stay as they were.
inline ModelConfig fp8_config(ModelConfig c = mini_config()) {
  c.hidden_size = 160, c.intermediate_size = c.num_experts ? 0 : 200;
  c.fp8 = BlockFp8{.modules_to_not_convert = {"in_proj_a", "in_proj_b", "mtp.fc", "model.layers.1.mlp"}};
  return c;
}

// Trained on 64 positions, stretched to 512.
inline ModelConfig yarn_config() {
  ModelConfig c = mini_config();
  c.rotary_dim = 8;
  c.yarn = YarnScaling{.factor = 8, .original_max_position_embeddings = 64};
  c.yarn->attention_factor = yarn_attention_factor(8);
  return c;
}

inline std::vector<std::pair<std::string, ModelConfig>> family() {
  ModelConfig next_fp8 = fp8_config(next_config());
  next_fp8.linear_key_head_dim = next_fp8.linear_value_head_dim = 128, next_fp8.intermediate_size = 200;
  next_fp8.fp8->modules_to_not_convert = {"in_proj_ba"};
  return {{"moe", moe_config()},  {"next", next_config()}, {"fp8", fp8_config()}, {"moe_fp8", fp8_config(moe_config())},
          {"next_fp8", next_fp8}, {"yarn", yarn_config()}};
}

}  // namespace deltaring::test
