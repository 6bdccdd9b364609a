#include "model/decoder.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace deltaring {

namespace {

View<3> one_group(const View<2>& x) { return heads_of(x, 0, 1, x.shape[1]); }

}  // namespace

ScratchList<Decoder> Decoder::scratch(const ModelConfig& config, int64_t max_tokens) {
  const int64_t H = config.hidden_size, Hv = config.linear_num_value_heads, I = config.intermediate_size;
  const int64_t q_dim = config.num_attention_heads * config.head_dim;
  const int64_t kv_dim = config.num_key_value_heads * config.head_dim;
  const int64_t n = max_tokens, value_dim = config.value_dim(), conv_dim = config.conv_dim();
  ScratchList<Decoder> list{{&Decoder::normed_, n, H},
                            {&Decoder::qkv_, n, conv_dim},
                            {&Decoder::conv_out_, n, conv_dim},
                            {&Decoder::z_, n, value_dim},
                            {&Decoder::core_, n, value_dim},
                            {&Decoder::a_, n, Hv},
                            {&Decoder::b_, n, Hv},
                            {&Decoder::g_, n, Hv},
                            {&Decoder::beta_, n, Hv},
                            {&Decoder::q_gate_, n, 2 * q_dim},
                            {&Decoder::k_, n, kv_dim},
                            {&Decoder::v_, n, kv_dim},
                            {&Decoder::attended_, n, q_dim},
                            {&Decoder::gate_, n, I},
                            {&Decoder::up_, n, I}};
  if (config.num_experts == 0) return list;
  const int64_t choices = config.num_experts_per_tok + 1, rows = n * choices;
  const int64_t widest = std::max(config.moe_intermediate_size, config.shared_expert_intermediate_size);
  list.insert(list.end(), {{&Decoder::router_, n, config.num_experts},
                           {&Decoder::shared_, n, 1},
                           {&Decoder::choice_, n, choices},
                           {&Decoder::weight_, n, choices},
                           {&Decoder::expert_rows_, rows, H},
                           {&Decoder::expert_gate_, rows, widest},
                           {&Decoder::expert_up_, rows, widest}});
  return list;
}

Decoder::Decoder(const ModelConfig& config, const OpTable& ops, Stream& stream, int64_t max_tokens)
    : config_(config), ops_(ops), stream_(stream), max_tokens_(max_tokens) {
  arena_ = allocate_scratch(*this, scratch(config, max_tokens), "scratch of the layers, --chunked-prefill-size");
  rotary_ = make_rotary(config.rotary_dim, config.rope_theta, config.yarn);
}

void Decoder::linear(View<2> x, const WeightMatrix& w, View<2> out, bool accumulate) {
  ops_.linear({.x = x, .w = w, .out = out, .accumulate = accumulate}, stream_);
}

void Decoder::norm(const std::vector<float>& w, View<2> x, View<2> out) {
  ops_.rms_norm(
      {.x = one_group(x), .w = w.data(), .eps = config_.rms_norm_eps, .zero_centred = true, .out = one_group(out)},
      stream_);
}

void Decoder::head_norm(const std::vector<float>& w, View<3> x) {
  ops_.rms_norm({.x = x, .w = w.data(), .eps = config_.rms_norm_eps, .zero_centred = true, .out = x}, stream_);
}

void Decoder::ffn(const LayerWeights& w, View<2> x) {
  const View<2> n = buffer(normed_, x.shape[0]);
  norm(w.post_attention_layernorm, x, n);
  if (w.moe) {
    experts(*w.moe, n, x);
  } else {
    mlp(w.mlp, n, buffer(gate_, x.shape[0]), buffer(up_, x.shape[0]), x, true);
  }
}

void Decoder::mlp(const MlpWeights& w, View<2> in, View<2> gate, View<2> up, View<2> out, bool accumulate) {
  linear(in, w.gate_proj, gate);
  linear(in, w.up_proj, up);
  ops_.swiglu({.gate = gate, .up = up, .out = gate}, stream_);
  linear(gate, w.down_proj, out, accumulate);
}

void Decoder::experts(const MoeWeights& w, View<2> n, View<2> x) {
  const int64_t tokens = x.shape[0], rows = tokens * choice_.shape[1];
  const View<2> router = buffer(router_, tokens), shared = buffer(shared_, tokens), weight = buffer(weight_, tokens);
  int32_t* const choice = static_cast<int32_t*>(choice_.data);
  linear(n, w.router, router);
  linear(n, w.shared_gate, shared);
  ops_.moe_route({.logits = router,
                  .shared = shared,
                  .k = config_.num_experts_per_tok,
                  .renormalise = config_.norm_topk_prob,
                  .expert = choice,
                  .weight = weight},
                 stream_);
  ops_.moe_experts({.x = n,
                    .expert = choice,
                    .weight = weight,
                    .experts = w.experts.data(),
                    .count = static_cast<int64_t>(w.experts.size()),
                    .rows = buffer(expert_rows_, rows),
                    .gate = buffer(expert_gate_, rows),
                    .up = buffer(expert_up_, rows),
                    .out = x},
                   stream_);
}

void Decoder::gdn_layer(const LayerWeights& w, const Rows& rows, const GdnLayerState& s, View<2> x) {
  const int64_t tokens = x.shape[0], Hk = config_.linear_num_key_heads, Hv = config_.linear_num_value_heads;
  const int64_t K = config_.linear_key_head_dim, V = config_.linear_value_head_dim, C = config_.conv_dim();
  const GdnWeights& gdn = w.gdn;
  const View<2> n = buffer(normed_, tokens), qkv = buffer(qkv_, tokens), conv = buffer(conv_out_, tokens);
  const View<2> z = buffer(z_, tokens), core = buffer(core_, tokens), a = buffer(a_, tokens), b = buffer(b_, tokens);
  const View<2> beta = buffer(beta_, tokens);
  norm(w.input_layernorm, x, n);
  linear(n, gdn.in_proj_qkv, qkv);
  linear(n, gdn.in_proj_z, z);
  linear(n, gdn.in_proj_a, a);
  linear(n, gdn.in_proj_b, b);
  const View<2> taps = dense<2>(const_cast<float*>(gdn.conv.data()), DType::f32, {C, config_.linear_conv_kernel_dim});
  ops_.conv({.rows = rows, .x = qkv, .weight = taps, .ring = s.conv_ring, .out = conv}, stream_);
  const View<3> g = heads_of(buffer(g_, tokens), 0, Hv, 1), q = heads_of(conv, 0, Hk, K);
  const View<3> k = heads_of(conv, Hk * K, Hk, K), v = heads_of(conv, 2 * Hk * K, Hv, V),
                out = heads_of(core, 0, Hv, V);
  ops_.gdn_gates({.a = heads_of(a, 0, Hv, 1),
                  .b = b,
                  .A_log = gdn.A_log.data(),
                  .dt_bias = gdn.dt_bias.data(),
                  .g = g,
                  .beta = beta},
                 stream_);
  if (s.rollback == StateRollback::snapshot) {
    ops_.snapshot_verify({.rows = rows,
                          .q = q,
                          .k = k,
                          .v = v,
                          .g = g,
                          .beta = beta,
                          .state = s.state.checkpoint,
                          .snapshots = s.prefill ? View<5>() : s.snapshots,
                          .out = out},
                         stream_);
  } else {
    const GdnVerifyArgs window{
        .rows = rows, .q = q, .k = k, .v = v, .g = g, .beta = beta, .state = s.state, .grain = s.grain, .out = out};
    (s.prefill ? ops_.gdn_prefill : ops_.gdn_verify)(window, stream_);
  }
  ops_.gated_rms_norm(
      {.x = out, .z = heads_of(z, 0, Hv, V), .w = gdn.norm.data(), .eps = config_.rms_norm_eps, .out = out}, stream_);
  linear(core, gdn.out_proj, x, true);
  ffn(w, x);
}

void Decoder::rope(const Rows& rows, View<3> heads) {
  ops_.rope({.rows = rows,
             .x = heads,
             .rotary = config_.rotary_dim,
             .theta = config_.rope_theta,
             .frequency = rotary_.frequency.data(),
             .amplitude = rotary_.amplitude},
            stream_);
}

void Decoder::key_value(const LayerWeights& w, const Rows& rows, const KvPages& kv, View<2> n) {
  const int64_t tokens = n.shape[0], Hkv = config_.num_key_value_heads, D = config_.head_dim;
  const View<3> k = heads_of(buffer(k_, tokens), 0, Hkv, D), v = heads_of(buffer(v_, tokens), 0, Hkv, D);
  linear(n, w.attention.k_proj, buffer(k_, tokens));
  linear(n, w.attention.v_proj, buffer(v_, tokens));
  head_norm(w.attention.k_norm, k);
  rope(rows, k);
  ops_.kv_append({.rows = rows, .k = k, .v = v, .kv = kv}, stream_);
}

void Decoder::attention_context(const LayerWeights& w, const Rows& rows, const KvPages& kv, View<2> x) {
  const View<2> n = buffer(normed_, x.shape[0]);
  norm(w.input_layernorm, x, n);
  key_value(w, rows, kv, n);
}

void Decoder::attention_layer(const LayerWeights& w, const Rows& rows, const KvPages& kv, View<2> x) {
  const int64_t tokens = x.shape[0], Hq = config_.num_attention_heads, D = config_.head_dim;
  const View<2> n = buffer(normed_, tokens), q_gate = buffer(q_gate_, tokens), attended = buffer(attended_, tokens);
  const View<3> q = heads_of(q_gate, 0, Hq, D, 2 * D), gate = heads_of(q_gate, D, Hq, D, 2 * D);
  norm(w.input_layernorm, x, n);
  linear(n, w.attention.q_proj, q_gate);
  head_norm(w.attention.q_norm, q);
  rope(rows, q);
  key_value(w, rows, kv, n);
  ops_.attention({.rows = rows,
                  .q = q,
                  .gate = gate,
                  .kv = kv,
                  .scale = 1 / std::sqrt(static_cast<float>(D)),
                  .out = heads_of(attended, 0, Hq, D)},
                 stream_);
  linear(attended, w.attention.o_proj, x, true);
  ffn(w, x);
}

}  // namespace deltaring
