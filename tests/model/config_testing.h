// What the tests of config.json share: small and published configs, and what is wrong with them.
#pragma once
#include <string>
#include <vector>

#include "loader_testing.h"
#include "model/config.h"
#include "model/weights.h"

namespace deltaring::testing {

inline ModelConfig parse(const json& document) { return parse_model_config(document.dump(), "config.json"); }

// small_config() with `change` merged in; null removes a key.
inline json changed(const json& change) {
  json document = small_config();
  document.merge_patch(change);
  return document;
}

// The published configs share everything but the sizes.
inline json published(int hidden, int layers, int Hv, int Hq, int Hkv, int intermediate) {
  return {{"model_type", "qwen3_5_text"},
          {"hidden_size", hidden},
          {"intermediate_size", intermediate},
          {"num_hidden_layers", layers},
          {"full_attention_interval", 4},
          {"num_attention_heads", Hq},
          {"num_key_value_heads", Hkv},
          {"head_dim", 256},
          {"linear_num_key_heads", 16},
          {"linear_num_value_heads", Hv},
          {"linear_key_head_dim", 128},
          {"linear_value_head_dim", 128},
          {"linear_conv_kernel_dim", 4},
          {"max_position_embeddings", 262144},
          {"mtp_num_hidden_layers", 1},
          {"mtp_use_dedicated_embeddings", false},
          {"mlp_only_layers", json::array()},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-6},
          {"vocab_size", 248320},
          {"mamba_ssm_dtype", "float32"},
          {"dtype", "bfloat16"},
          {"eos_token_id", 248044},
          {"initializer_range", 0.02},
          {"rope_parameters",
           {{"rope_type", "default"},
            {"rope_theta", 10000000},
            {"partial_rotary_factor", 0.25},
            {"mrope_section", {11, 11, 10}},
            {"mrope_interleaved", true}}}};
}

inline int64_t parameters(const ModelConfig& config, const std::string& start) {
  int64_t total = 0;
  for (const TensorSpec& spec : expected_tensors(config)) {
    int64_t size = 1;
    for (int64_t dim : spec.shape) size *= dim;
    if (spec.name.starts_with(start)) total += size;
  }
  return total;
}

struct Refusal {
  json change;
  ErrorKind kind;
  std::vector<std::string> parts;
};

}  // namespace deltaring::testing
