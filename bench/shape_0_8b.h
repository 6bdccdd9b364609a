// The shape of Qwen3.5-0.8B, for benches on random weights.
#pragma once
#include "model/config.h"

namespace deltaring::bench {

inline ModelConfig config_0_8b() {
  ModelConfig c;
  c.model_type = "qwen3_5_text";
  c.hidden_size = 1024, c.intermediate_size = 3584, c.vocab_size = 248320, c.num_hidden_layers = 24;
  for (int i = 0; i < 24; i++) c.layer_types.push_back(i % 4 == 3 ? LayerKind::full_attention : LayerKind::gdn);
  c.num_attention_heads = 8, c.num_key_value_heads = 2, c.head_dim = 256, c.rotary_dim = 64, c.rope_theta = 1e7;
  c.linear_num_key_heads = 16, c.linear_num_value_heads = 16, c.linear_key_head_dim = 128,
  c.linear_value_head_dim = 128;
  c.linear_conv_kernel_dim = 4, c.max_position_embeddings = 4096, c.tie_word_embeddings = true,
  c.mtp_num_hidden_layers = 0;
  return c;
}

}  // namespace deltaring::bench
