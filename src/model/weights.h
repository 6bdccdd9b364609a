// The weights of a model, bound by name. Binding is strict: what the config asks for and what the source holds must be
// the same set of tensors, so that no weight is ever silently left out.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/view.h"
#include "model/config.h"
#include "model/tensor_source.h"

namespace deltaring {

// Matrices are [out, in] views of the source's memory in the source's dtype: read only, although View has no const.
// Vectors are f32 copies. Symbols: H hidden_size, I intermediate_size, D head_dim; the others as in ModelConfig.

struct MlpWeights {
  View<2> gate_proj, up_proj;  // [I, H]
  View<2> down_proj;           // [H, I]
};

struct AttentionWeights {
  View<2> q_proj;                     // [2 Hq D, H]: per head D rows of query, then D rows of gate
  View<2> k_proj, v_proj;             // [Hkv D, H]
  View<2> o_proj;                     // [H, Hq D]
  std::vector<float> q_norm, k_norm;  // [D], zero-centred
};

struct GdnWeights {
  View<2> in_proj_qkv;           // [conv_dim, H]: rows of all Q heads, then all K heads, then all V heads
  View<2> in_proj_z;             // [Hv V, H]
  View<2> in_proj_b, in_proj_a;  // [Hv, H]
  View<2> out_proj;              // [H, Hv V]
  std::vector<float> conv;       // [conv_dim, taps]; the last tap multiplies the current token
  std::vector<float> A_log;      // [Hv]
  std::vector<float> dt_bias;    // [Hv]
  std::vector<float> norm;       // [V], plain
};

struct LayerWeights {
  LayerKind kind = LayerKind::gdn;
  std::vector<float> input_layernorm, post_attention_layernorm;  // [H], zero-centred
  AttentionWeights attention;                                    // of a full_attention layer
  GdnWeights gdn;                                                // of a gdn layer
  MlpWeights mlp;
};

struct MtpWeights {
  View<2> fc;  // [H, 2 H]: columns of the embedding, then of the hidden
  std::vector<float> pre_fc_norm_embedding, pre_fc_norm_hidden, norm;  // [H], zero-centred
  LayerWeights layer;                                                  // full_attention
};

struct Weights {
  ModelConfig config;  // as bound: tie_word_embeddings is decided, mtp_num_hidden_layers is what was found
  std::string prefix;  // of the decoder's tensor names

  View<2> embed_tokens;     // [vocab_size, H]
  View<2> lm_head;          // [vocab_size, H]; embed_tokens itself when tied
  std::vector<float> norm;  // [H], zero-centred
  std::vector<LayerWeights> layers;
  std::optional<MtpWeights> mtp;

  std::vector<std::string> notices;            // what was skipped on purpose, one sentence each
  std::shared_ptr<const TensorSource> source;  // keeps the memory of the views alive
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  bool is_matrix;  // bound as a view; otherwise copied to f32
};

// The tensors that a model of this config has, decoder names starting with `prefix`: lm_head when the config says
// untied, mtp.* when it has an MTP layer. Binding demands exactly these.
std::vector<TensorSpec> expected_tensors(const ModelConfig& config, const std::string& prefix = "model.");

// Binds `source`, probing for the prefix (model., model.language_model. or language_model.model.). The vision tower is
// skipped, an MTP layer that the source lacks is left out; both leave a notice. NaN and infinity are accepted.
// Throws Error(not_found) without an embedding, Error(unsupported) for element types other than F32, BF16 and F16, and
// Error(corrupt) for missing, unexpected and mis-shaped tensors and where the tensors contradict the config: the first
// five by name, and their count.
Weights bind_weights(const ModelConfig& config, std::shared_ptr<const TensorSource> source);

// bind_weights of the safetensors in a model folder.
Weights load_weights(const std::filesystem::path& folder, const ModelConfig& config);

struct NonFinite {
  std::string name;
  int64_t count, size;  // elements that are NaN or infinite, all elements
};

// Scans every bound tensor; empty for a healthy model. Reads all weights once, and so brings them into memory;
// on_progress, if given, hears the fraction done after each tensor, 0 first and 1 last.
std::vector<NonFinite> non_finite(const Weights& weights, const std::function<void(double)>& on_progress = {});

}  // namespace deltaring
