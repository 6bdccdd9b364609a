#include "model/hybrid.h"

#include "base/error.h"

namespace deltaring {

const OpTable& check_ops(const OpTable& t) {
  const std::pair<const char*, bool> needed[] = {{"make_stream", t.make_stream},
                                                 {"embedding", t.embedding},
                                                 {"linear", t.linear},
                                                 {"swiglu", t.swiglu},
                                                 {"rms_norm", t.rms_norm},
                                                 {"gated_rms_norm", t.gated_rms_norm},
                                                 {"rope", t.rope},
                                                 {"kv_append", t.kv_append},
                                                 {"attention", t.attention},
                                                 {"conv", t.conv},
                                                 {"gdn_gates", t.gdn_gates},
                                                 {"gdn_verify", t.gdn_verify},
                                                 {"gdn_prefill", t.gdn_prefill},
                                                 {"gdn_fold", t.gdn_fold},
                                                 {"argmax", t.argmax},
                                                 {"probabilities", t.probabilities}};
  for (const auto& [name, has] : needed) {
    if (!has)
      fail(ErrorKind::unsupported, "backend {} has no op {}, which this model needs; cpu has all", t.name, name);
  }
  return t;
}

HybridModel::HybridModel(Weights weights, const OpTable& ops, Stream& stream, int64_t max_tokens)
    : weights_(std::move(weights)), decoder_(weights_.config, check_ops(ops), stream, max_tokens) {}

StateShape state_shape(const Weights& weights) {
  const ModelConfig& c = weights.config;
  return {.gdn_layers = c.count(LayerKind::gdn),
          .Hk = c.linear_num_key_heads,
          .Hv = c.linear_num_value_heads,
          .K = c.linear_key_head_dim,
          .V = c.linear_value_head_dim,
          .conv_channels = c.conv_dim(),
          .taps = c.linear_conv_kernel_dim,
          .kv_layers = c.count(LayerKind::full_attention) + (weights.mtp ? 1 : 0),
          .Hkv = c.num_key_value_heads,
          .D = c.head_dim};
}

void HybridModel::forward(const Rows& rows, const int32_t* ids, bool prefill, const StatePool& pool, View<2> hidden) {
  decoder_.ops().embedding({.ids = ids, .table = weights_.embed_tokens, .out = hidden}, decoder_.stream());
  int64_t gdn_layer = 0, kv_layer = 0;
  for (const LayerWeights& layer : weights_.layers) {
    if (layer.kind == LayerKind::gdn) {
      const GdnLayerState state{.state = pool.gdn(gdn_layer),
                                .conv_ring = pool.conv_ring(gdn_layer),
                                .grain = pool.grain(),
                                .prefill = prefill};
      decoder_.gdn_layer(layer, rows, state, hidden);
      gdn_layer++;
    } else {
      decoder_.attention_layer(layer, rows, pool.kv(kv_layer++), hidden);
    }
  }
  decoder_.norm(weights_.norm, hidden, hidden);
}

void HybridModel::fold(const Rows& rows, const StatePool& pool) {
  for (int64_t layer = 0; layer < pool.shape().gdn_layers; layer++) {
    decoder_.ops().gdn_fold({.rows = rows, .state = pool.gdn(layer), .grain = pool.grain()}, decoder_.stream());
  }
}

}  // namespace deltaring
