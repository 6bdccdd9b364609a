// What the config.json of a block drafter says: DFlash, DFlash 2 and DSpark share a backbone and differ in what stands
// around it. A kind is told by the fields that are there, never by a name alone. Fields that change the forward and
// that we cannot follow are refused by name.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace deltaring {

enum class BlockKind : uint8_t { dflash, dflash2, dspark };
constexpr BlockKind kBlockKinds[] = {BlockKind::dflash, BlockKind::dflash2, BlockKind::dspark};
constexpr const char* name_of(BlockKind kind) {
  return kind == BlockKind::dflash ? "dflash" : kind == BlockKind::dflash2 ? "dflash2" : "dspark";
}

enum class MarkovHead : uint8_t { vanilla, gated, rnn };

// What a block row sees: of the context what lies at most window - 1 positions before it (0 = all), of the block
// everything, or what does not stand behind it.
struct BlockAttention {
  int64_t window = 0;
  bool causal = false;
};

// Three containers are read: z-lab (dflash_config beside the layer's fields), DeepSpec (all fields at the top) and
// vllm-project/speculators (speculators_model_type, the layer's fields in transformer_layer_config). Sizes are bounded
// as in ModelConfig.
struct BlockConfig {
  std::string where;  // names the file in messages

  int64_t hidden_size = 0;  // H, the target's
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;                                                  // the target's
  int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;  // Hq, Hkv, D
  float rms_norm_eps = 1e-6f;
  double rope_theta = 0;
  std::optional<YarnScaling> yarn;
  std::vector<BlockAttention> layers;  // [num_hidden_layers]

  int64_t block_size = 0;           // rows of a block: the anchor, then mask tokens
  bool first_row_predicts = false;  // row j predicts position p+j+1, the anchor's row too; else p+j from row 1 on
  int64_t mask_token_id = 0;
  int64_t num_target_layers = 0;          // 0: not said
  std::vector<int64_t> target_layer_ids;  // taps: target layers whose output is read, -1 = the embedding

  bool sinks = false;                 // one sink a head in every layer
  float value_scale = 1;              // of v, context and block
  float input_embedding_scale = 1;    // of the block's embeddings
  float output_multiplier = 1;        // of the logits, then
  float final_logit_softcapping = 0;  // s: logits become s tanh(logits / s); 0 = off
  int64_t draft_vocab_size = 0;       // ids of a head of its own, mapped to the target's; 0: the target's head

  int64_t conv_kernel_size = 0, conv_group_size = 0;  // taps and group of the dynamic convolutions; 0 = none
  int64_t selector_rank = 0, selector_top_k = 0;      // of the path selector; 0 = none

  int64_t markov_rank = 0;  // 0 = no Markov head
  MarkovHead markov_head = MarkovHead::vanilla;
  bool confidence_head = false, confidence_with_markov = false;

  BlockKind kind() const;
  int64_t drafts() const { return first_row_predicts ? block_size : block_size - 1; }  // of a whole block
  int64_t window() const { return drafts() + 1; }                                      // T that verifies them
};

// `text` is the content of a config.json. Throws Error(corrupt) for bad JSON, missing keys and impossible values,
// Error(unsupported) for what is valid elsewhere.
BlockConfig parse_block_config(std::string_view text, const std::string& where);
BlockConfig load_block_config(const std::filesystem::path& folder);

// Settles what only the target can say (default taps) and refuses a drafter that was made for another one: by its
// vocabulary, hidden size, depth, taps or mask token.
void fit_to_target(BlockConfig& drafter, const ModelConfig& target);

}  // namespace deltaring
