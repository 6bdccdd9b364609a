// The one list of a model's tensors: visit_all calls visit(name, shape, field) for each. `field` is a View<2>& for a
// matrix, a WeightMatrix& or WeightStack& for what may be in float8 and then has scales, else a std::vector<float>&.
#pragma once
#include <fmt/format.h>

#include <string>
#include <vector>

#include "model/weights.h"

namespace deltaring {

inline constexpr const char* kEmbedding = "embed_tokens.weight";
inline constexpr const char* kMtp = "mtp.";

inline std::string head_name(const std::string& prefix) {
  return prefix == "language_model.model." ? "language_model.lm_head.weight" : "lm_head.weight";
}

template <class Attention, class Visit>
void visit_attention(const ModelConfig& c, const std::string& at, Attention& w, const Visit& visit) {
  const int64_t H = c.hidden_size, D = c.head_dim;
  visit(at + "q_proj.weight", {2 * c.num_attention_heads * D, H}, w.q_proj);
  visit(at + "k_proj.weight", {c.num_key_value_heads * D, H}, w.k_proj);
  visit(at + "v_proj.weight", {c.num_key_value_heads * D, H}, w.v_proj);
  visit(at + "o_proj.weight", {H, c.num_attention_heads * D}, w.o_proj);
  visit(at + "q_norm.weight", {D}, w.q_norm);
  visit(at + "k_norm.weight", {D}, w.k_norm);
}

template <class Gdn, class Visit>
void visit_gdn(const ModelConfig& c, const std::string& at, Gdn& w, const Visit& visit) {
  const int64_t H = c.hidden_size, Hv = c.linear_num_value_heads;
  if (c.interleaved_gdn()) {
    visit(at + "in_proj_qkvz.weight", {c.conv_dim() + c.value_dim(), H}, w.in_proj_qkvz);
    visit(at + "in_proj_ba.weight", {2 * Hv, H}, w.in_proj_ba);
  } else {
    visit(at + "in_proj_qkv.weight", {c.conv_dim(), H}, w.in_proj_qkv);
    visit(at + "in_proj_z.weight", {c.value_dim(), H}, w.in_proj_z);
    visit(at + "in_proj_b.weight", {Hv, H}, w.in_proj_b);
    visit(at + "in_proj_a.weight", {Hv, H}, w.in_proj_a);
  }
  visit(at + "conv1d.weight", {c.conv_dim(), 1, c.linear_conv_kernel_dim}, w.conv);
  visit(at + "A_log", {Hv}, w.A_log);
  visit(at + "dt_bias", {Hv}, w.dt_bias);
  visit(at + "norm.weight", {c.linear_value_head_dim}, w.norm);
  visit(at + "out_proj.weight", {H, c.value_dim()}, w.out_proj);
}

template <class Matrix, class Visit>
void visit_mlp(int64_t H, int64_t I, const std::string& at, Matrix& gate, Matrix& up, Matrix& down,
               const Visit& visit) {
  visit(at + "gate_proj.weight", {I, H}, gate);
  visit(at + "up_proj.weight", {I, H}, up);
  visit(at + "down_proj.weight", {H, I}, down);
}

template <class Moe, class Visit>
void visit_moe(const ModelConfig& c, const std::string& at, Moe& w, const Visit& visit) {
  const int64_t H = c.hidden_size, E = c.num_experts, I = c.moe_intermediate_size;
  visit(at + "gate.weight", {E, H}, w.router);
  if (w.fused) {
    visit(at + "experts.gate_up_proj", {E, 2 * I, H}, w.gate_up);
    visit(at + "experts.down_proj", {E, H, I}, w.down);
  }
  for (int64_t e = 0; e < E && !w.fused; e++) {
    auto& expert = w.experts[static_cast<size_t>(e)];
    visit_mlp(H, I, fmt::format("{}experts.{}.", at, e), expert.gate, expert.up, expert.down, visit);
  }
  auto& shared = w.experts.back();
  visit_mlp(H, c.shared_expert_intermediate_size, at + "shared_expert.", shared.gate, shared.up, shared.down, visit);
  visit(at + "shared_expert_gate.weight", {1, H}, w.shared_gate);
}

template <class Layer, class Visit>
void visit_layer(const ModelConfig& c, const std::string& at, Layer& w, const Visit& visit) {
  const int64_t H = c.hidden_size;
  visit(at + "input_layernorm.weight", {H}, w.input_layernorm);
  if (w.kind == LayerKind::full_attention) {
    visit_attention(c, at + "self_attn.", w.attention, visit);
  } else {
    visit_gdn(c, at + "linear_attn.", w.gdn, visit);
  }
  visit(at + "post_attention_layernorm.weight", {H}, w.post_attention_layernorm);
  if (w.moe) {
    visit_moe(c, at + "mlp.", *w.moe, visit);
  } else {
    visit_mlp(H, c.intermediate_size, at + "mlp.", w.mlp.gate_proj, w.mlp.up_proj, w.mlp.down_proj, visit);
  }
}

template <class AnyWeights, class Visit>
void visit_all(AnyWeights& w, const Visit& visit) {
  const ModelConfig& c = w.config;
  const int64_t H = c.hidden_size;
  visit(w.prefix + kEmbedding, {c.vocab_size, H}, w.embed_tokens);
  for (size_t i = 0; i < w.layers.size(); i++) {
    visit_layer(c, fmt::format("{}layers.{}.", w.prefix, i), w.layers[i], visit);
  }
  visit(w.prefix + "norm.weight", {H}, w.norm);
  if (!c.tie_word_embeddings.value_or(true)) visit(head_name(w.prefix), {c.vocab_size, H}, w.lm_head);
  if (!w.mtp) return;
  visit(std::string(kMtp) + "fc.weight", {H, 2 * H}, w.mtp->fc);
  visit(std::string(kMtp) + "pre_fc_norm_embedding.weight", {H}, w.mtp->pre_fc_norm_embedding);
  visit(std::string(kMtp) + "pre_fc_norm_hidden.weight", {H}, w.mtp->pre_fc_norm_hidden);
  visit_layer(c, std::string(kMtp) + "layers.0.", w.mtp->layer, visit);
  visit(std::string(kMtp) + "norm.weight", {H}, w.mtp->norm);
}

}  // namespace deltaring
