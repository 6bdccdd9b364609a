// The weights of a block drafter, bound by name and as strictly as a model's: what the config asks for and what the
// source holds must be the same set of tensors. Copies of the target's embedding and head are skipped.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "draft/block_config.h"
#include "model/weights.h"

namespace deltaring {

// Matrices are [out, in] views of the source's memory, vectors f32 copies, as in Weights. All norms are plain: x * w.

struct DynamicConvWeights {
  std::vector<float> base_kernel;  // [2, taps, H]: before and behind the sublayer; tap o multiplies the row o before
  View<2> kernel_projection;       // [2 taps G, H], G = H / group
};

struct BlockLayerWeights {
  std::vector<float> input_layernorm, post_attention_layernorm;  // [H]
  View<2> q_proj, k_proj, v_proj, o_proj;                        // [Hq D, H], [Hkv D, H] twice, [H, Hq D]
  std::vector<float> q_norm, k_norm;                             // [D]
  std::vector<float> sinks;                                      // [Hq] or empty
  MlpWeights mlp;
  DynamicConvWeights attention_conv, mlp_conv;
};

struct SelectorWeights {
  View<2> predecessor_codebook, successor_codebook;  // [vocab, R]
  View<2> hidden_projection;                         // [R, H]
};

struct MarkovWeights {
  View<2> w1;               // [vocab, r]: embedding of the token before
  View<2> w2;               // [vocab or draft_vocab, r]
  View<2> proj;             // gated: [r, H + r]; rnn: [3 r, 2 r + H]; vanilla: none
  std::vector<float> bias;  // [r] or [3 r]
};

struct BlockWeights {
  BlockConfig config;
  View<2> fc;                            // [H, taps H]
  std::vector<float> hidden_norm, norm;  // [H]
  std::vector<BlockLayerWeights> layers;
  SelectorWeights selector;
  MarkovWeights markov;
  View<2> confidence;  // [1, H (+ r)]
  std::vector<float> confidence_bias;
  View<2> lm_head;                  // [draft_vocab, H] with a vocabulary of its own
  std::vector<int32_t> target_ids;  // [draft_vocab] the target's id of each of its own

  int64_t bytes = 0;  // of the tensors that are bound, as stored
  std::vector<std::string> notices;
  std::shared_ptr<const TensorSource> source;
};

// The tensors that a drafter of this config has.
std::vector<TensorSpec> expected_tensors(const BlockConfig& config);

// `config` has been fitted to its target. Names may start with `model.`; the projection of the taps may be called
// encoder.fc and its norm encoder.output_norm_enc. Throws as bind_weights.
BlockWeights bind_block_weights(const BlockConfig& config, std::shared_ptr<const TensorSource> source);

// bind_block_weights of the safetensors in a drafter's folder.
BlockWeights load_block_weights(const std::filesystem::path& folder, const BlockConfig& config);

// Scans every bound tensor, as the one of a model's weights. Names are those of the config's tensors, without `model.`.
std::vector<NonFinite> non_finite(const BlockWeights& weights);

}  // namespace deltaring
