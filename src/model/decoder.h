// The two kinds of decoder layer, over any rows: the trunk of a model and the layer of its MTP head are made of them.
#pragma once
#include <vector>

#include "base/scratch.h"
#include "model/weights.h"
#include "ops/table.h"
#include "state/pool.h"

namespace deltaring {

// Where a GDN layer keeps its state, and how its rows are to be read.
struct GdnLayerState {
  StateRollback rollback;
  GdnState state;
  View<5> snapshots;  // [seats, T, Hv, V, K] under snapshot with T > 1
  View<3> conv_ring;  // [seats, Rc, C]
  int64_t grain;      // F or 0
  bool prefill;       // all row tokens are accepted
};

class Decoder {
 public:
  // What a decoder for steps of up to max_tokens tokens allocates.
  static ScratchList<Decoder> scratch(const ModelConfig& config, int64_t max_tokens);

  // Scratch for steps of up to max_tokens tokens. Config, table and stream outlive the decoder.
  Decoder(const ModelConfig& config, const OpTable& ops, Stream& stream, int64_t max_tokens);

  // One layer, in place on the residual stream x [tokens, H]: x += mixer(norm(x)); x += ffn(norm(x)).
  void gdn_layer(const LayerWeights& w, const Rows& rows, const GdnLayerState& state, View<2> x);
  void attention_layer(const LayerWeights& w, const Rows& rows, const KvPages& kv, View<2> x);
  // Of an attention layer what later rows need: keys and values of x go to the pages, x stays.
  void attention_context(const LayerWeights& w, const Rows& rows, const KvPages& kv, View<2> x);

  // Zero-centred norm of x [tokens, H] into out.
  void norm(const std::vector<float>& w, View<2> x, View<2> out);
  // out = x w^T, or out += x w^T.
  void linear(View<2> x, const WeightMatrix& w, View<2> out, bool accumulate = false);
  // out = mlp(in), or out += mlp(in); gate and up [tokens, I] are left overwritten.
  void mlp(const MlpWeights& w, View<2> in, View<2> gate, View<2> up, View<2> out, bool accumulate);

  int64_t max_tokens() const { return max_tokens_; }
  const OpTable& ops() const { return ops_; }
  Stream& stream() { return stream_; }

 private:
  void ffn(const LayerWeights& w, View<2> x);  // mlp, or experts
  void experts(const MoeWeights& w, View<2> n, View<2> x);
  void head_norm(const std::vector<float>& w, View<3> x);  // per head, in place
  void rope(const Rows& rows, View<3> heads);
  void key_value(const LayerWeights& w, const Rows& rows, const KvPages& kv, View<2> n);  // of normed rows
  View<2> buffer(View<2>& whole, int64_t tokens) { return whole.rows(0, tokens); }

  const ModelConfig& config_;
  const OpTable& ops_;
  Stream& stream_;
  const int64_t max_tokens_;
  Arena arena_;
  // Scratch of one layer, [max_tokens, ...] f32.
  View<2> normed_;                     // [H]
  View<2> qkv_, conv_out_, z_, core_;  // [conv_dim] twice, [Hv V] twice
  View<2> a_, b_, g_, beta_;           // [Hv]
  View<2> q_gate_, k_, v_, attended_;  // [2 Hq D], [Hkv D] twice, [Hq D]
  View<2> gate_, up_;                  // [I of a dense MLP]
  // With experts, k + 1 choices a token; the last three have a row for each of them.
  View<2> router_, shared_;                        // [E], [1]
  View<2> choice_, weight_;                        // [k + 1]; the choices are int32
  View<2> expert_rows_, expert_gate_, expert_up_;  // [H], [I of the largest expert] twice
  Rotary rotary_;
};

}  // namespace deltaring
