// The weights of a model, bound by name. Binding is strict: what the config asks for and what the source holds must be
// the same set of tensors, so that no weight is ever silently left out.
#pragma once
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/arena.h"
#include "base/view.h"
#include "model/config.h"
#include "model/tensor_source.h"
#include "ops/moe.h"

namespace deltaring {

// Matrices are [out, in] views of the source's memory in the source's dtype: read only, although View has no const.
// Those of linear layers may be in float8 and then have scales. Vectors are f32 copies. Symbols: H hidden_size,
// I intermediate_size, E num_experts, D head_dim; the others as in ModelConfig.

struct MlpWeights {
  WeightMatrix gate_proj, up_proj;  // [I, H]
  WeightMatrix down_proj;           // [H, I]
};

// E matrices in one tensor.
struct WeightStack {
  View<3> values;  // [E, N, K]
  View<3> scales;  // [E, ceil(N / 128), ceil(K / 128)] with float8, else empty

  WeightMatrix operator[](int64_t e) const {
    return scales ? WeightMatrix(values[e], scales[e]) : WeightMatrix(values[e]);
  }
};

// Whether a field may be in float8.
template <class Field>
concept Scalable =
    std::same_as<std::remove_const_t<Field>, WeightMatrix> || std::same_as<std::remove_const_t<Field>, WeightStack>;

struct MoeWeights {
  View<2> router;                      // [E, H]
  WeightMatrix shared_gate;            // [1, H]
  bool fused = false;                  // how the file packs the experts: stacked, or three tensors for each
  WeightStack gate_up, down;           // when fused: [E, 2 I, H], rows of gate, then those of up; [E, H, I]
  std::vector<ExpertWeights> experts;  // [E + 1], the shared one last; views into either packing
};

struct AttentionWeights {
  WeightMatrix q_proj;                // [2 Hq D, H]: per head D rows of query, then D rows of gate
  WeightMatrix k_proj, v_proj;        // [Hkv D, H]
  WeightMatrix o_proj;                // [H, Hq D]
  std::vector<float> q_norm, k_norm;  // [D], zero-centred
};

struct GdnWeights {
  WeightMatrix in_proj_qkv;           // [conv_dim, H]: rows of all Q heads, then all K heads, then all V heads
  WeightMatrix in_proj_z;             // [Hv V, H]
  WeightMatrix in_proj_b, in_proj_a;  // [Hv, H]
  WeightMatrix out_proj;              // [H, Hv V]
  std::vector<float> conv;            // [conv_dim, taps]; the last tap multiplies the current token
  std::vector<float> A_log;           // [Hv]
  std::vector<float> dt_bias;         // [Hv]
  std::vector<float> norm;            // [V], plain
  // Of Qwen3-Next, as its file has them; the four in_proj above are copies of their rows.
  WeightMatrix in_proj_qkvz;  // [2 Hk K + 2 Hv V, H]: per key head its Q, K, V and Z rows
  WeightMatrix in_proj_ba;    // [2 Hv, H]: per key head its b, then its a rows
};

struct LayerWeights {
  LayerKind kind = LayerKind::gdn;
  std::vector<float> input_layernorm, post_attention_layernorm;  // [H], zero-centred
  AttentionWeights attention;                                    // of a full_attention layer
  GdnWeights gdn;                                                // of a gdn layer
  MlpWeights mlp;                                                // of a dense layer
  std::optional<MoeWeights> moe;                                 // of a layer with experts
};

struct MtpWeights {
  WeightMatrix fc;  // [H, 2 H]: columns of the embedding, then of the hidden
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
  std::shared_ptr<const Arena> reordered;      // the same for rows that are not used in the order of their file
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  bool is_matrix;      // bound as a view; otherwise copied to f32
  DType dtype;         // as stored
  int64_t copied = 0;  // bytes of memory beside the file's that binding takes

  int64_t elements() const;
  int64_t bytes() const { return elements() * static_cast<int64_t>(size_of(dtype)); }
};

// The tensors that a model of this config has, decoder names starting with `prefix`: lm_head when the config says
// untied, mtp.* when it has an MTP layer, float8 with its scales where the config converts. Binding demands exactly
// these, but takes experts in either packing, float32, bfloat16 and float16 for each other and for float8.
std::vector<TensorSpec> expected_tensors(const ModelConfig& config, const std::string& prefix = "model.");

// The tensors that are bound.
std::vector<TensorSpec> bound_tensors(const Weights& weights);

// Binds `source`, probing for the prefix (model., model.language_model. or language_model.model.). The vision tower is
// skipped, an MTP layer that the source lacks is left out; both leave a notice. NaN and infinity are accepted.
// A linear layer may be F8_E4M3 where the config has float8 and then needs its scales. The projections of Qwen3-Next
// are brought into the order of the others, in memory of their own; everything else stays where it is. Throws
// Error(not_found) without an embedding, Error(unsupported) for other element types, and Error(corrupt) for missing,
// unexpected and mis-shaped tensors, scales included, and where the tensors contradict the config: the first five by
// name, and their count.
Weights bind_weights(const ModelConfig& config, std::shared_ptr<const TensorSource> source);

// bind_weights of the safetensors in a model folder.
Weights load_weights(const std::filesystem::path& folder, const ModelConfig& config);

struct NonFinite {
  std::string name;
  int64_t count, size;  // elements that are NaN or infinite, all elements
};

// Scans every bound tensor, scales included; empty for a healthy model. Reads all weights once, and so brings them into
// memory; on_progress, if given, hears the fraction done after each tensor, 0 first and 1 last.
std::vector<NonFinite> non_finite(const Weights& weights, const std::function<void(double)>& on_progress = {});

}  // namespace deltaring
