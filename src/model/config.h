// What config.json says about a model. Only options that change the forward are read; those that we cannot follow are
// refused by name, all other keys are ignored.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "model/block_fp8.h"
#include "model/rotary.h"

namespace deltaring {

enum class LayerKind : uint8_t { gdn, full_attention };

constexpr const char* name_of(LayerKind kind) { return kind == LayerKind::gdn ? "linear_attention" : "full_attention"; }

// Field names are those of config.json. Every size is positive and bounded such that no product that a model of this
// family needs (tensor bytes, state bytes, their sums over all layers) leaves int64.
struct ModelConfig {
  std::string model_type;  // of the text model: qwen3_5_text, qwen3_5_moe_text or qwen3_next

  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of a dense MLP; 0: not given, every layer has experts
  int64_t vocab_size = 0;         // rows of the embedding; the tokenizer may know fewer ids
  int64_t num_hidden_layers = 0;
  std::vector<LayerKind> layer_types;  // [num_hidden_layers]

  int64_t num_attention_heads = 0;  // Hq, a multiple of Hkv
  int64_t num_key_value_heads = 0;  // Hkv
  int64_t head_dim = 0;             // D
  int64_t rotary_dim = 0;           // leading dims of a head that rotate: even, <= D
  double rope_theta = 0;
  std::optional<YarnScaling> yarn;

  int64_t linear_num_key_heads = 0;    // Hk
  int64_t linear_num_value_heads = 0;  // Hv = Hk * {1, 2, 3, 4 or 8}
  int64_t linear_key_head_dim = 0;     // K
  int64_t linear_value_head_dim = 0;   // V
  int64_t linear_conv_kernel_dim = 0;  // taps

  // Experts. A layer has them unless it is among mlp_only_layers or decoder_sparse_step skips it.
  int64_t num_experts = 0;                      // E; 0: every layer has a dense MLP
  int64_t num_experts_per_tok = 0;              // k
  int64_t moe_intermediate_size = 0;            // of an expert
  int64_t shared_expert_intermediate_size = 0;  // of the one that every token takes
  bool norm_topk_prob = true;                   // weights of the k experts are divided by their sum
  int64_t decoder_sparse_step = 1;              // every so many layers
  std::vector<int64_t> mlp_only_layers;

  float rms_norm_eps = 1e-6f;
  int64_t max_position_embeddings = 0;      // tokens; YaRN's, where it stretches the context
  std::optional<bool> tie_word_embeddings;  // not given: tied when the file has no lm_head.weight
  int64_t mtp_num_hidden_layers = 0;        // 0 or 1
  DType mamba_ssm_dtype = DType::f32;       // of the persistent recurrent state
  DType dtype = DType::bf16;                // the model was trained in; tensors say their own
  std::optional<BlockFp8> fp8;              // linear layers are stored in float8

  std::vector<int64_t> eos_token_id;  // each in [0, vocab_size); generation_config.json overrides it
  std::vector<std::string> notices;   // what was skipped on purpose, one sentence each

  int64_t key_dim() const { return linear_num_key_heads * linear_key_head_dim; }        // Hk K
  int64_t value_dim() const { return linear_num_value_heads * linear_value_head_dim; }  // Hv V
  int64_t conv_dim() const { return 2 * key_dim() + value_dim(); }                      // channels [Q | K | V]
  int64_t count(LayerKind kind) const;                                                  // layers of that kind
  bool has_experts(int64_t layer) const;
  // Qwen3-Next stores its GDN projections as in_proj_qkvz and in_proj_ba, rows interleaved by key head.
  bool interleaved_gdn() const { return model_type == "qwen3_next"; }
};

// One `name value` line a field.
std::string to_string(const ModelConfig& config);

// `text` is the content of a config.json, flat (qwen3_5_text, qwen3_5_moe_text, qwen3_next) or nested (qwen3_5 and
// qwen3_5_moe with text_config); `where` names it in messages. Throws Error(corrupt) for bad JSON (with the byte
// offset), missing keys and impossible values, and Error(unsupported) for models and options that are valid elsewhere.
ModelConfig parse_model_config(std::string_view text, const std::string& where);

// The same for folder/config.json. Also throws Error(not_found) for a folder without one and Error(invalid_argument)
// when `folder` is a file, saying what a model folder holds.
ModelConfig load_model_config(const std::filesystem::path& folder);

}  // namespace deltaring
