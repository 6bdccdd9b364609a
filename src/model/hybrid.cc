#include "model/hybrid.h"

#include <algorithm>

#include "base/error.h"

namespace deltaring {

const OpTable& check_ops(const OpTable& t) {
  const std::pair<const char*, bool> needed[] = {{"make_stream", t.make_stream},
                                                 {"embedding", t.embedding},
                                                 {"linear", t.linear},
                                                 {"swiglu", t.swiglu},
                                                 {"moe_route", t.moe_route},
                                                 {"moe_experts", t.moe_experts},
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
                                                 {"snapshot_verify", t.snapshot_verify},
                                                 {"snapshot_commit", t.snapshot_commit},
                                                 {"argmax", t.argmax},
                                                 {"probabilities", t.probabilities},
                                                 {"penalties", t.penalties},
                                                 {"log_probabilities", t.log_probabilities}};
  for (const auto& [name, has] : needed) {
    if (!has)
      fail(ErrorKind::unsupported, "backend {} has no op {}, which this model needs; cpu has all", t.name, name);
  }
  return t;
}

HybridModel::HybridModel(Weights weights, const OpTable& ops, Stream& stream, int64_t max_tokens)
    : weights_(std::move(weights)), decoder_(weights_.config, check_ops(ops), stream, max_tokens) {}

StateShape state_shape(const Weights& weights) { return state_shape(weights.config, weights.mtp.has_value()); }

StateShape state_shape(const ModelConfig& c, bool mtp) {
  return {.gdn_layers = c.count(LayerKind::gdn),
          .Hk = c.linear_num_key_heads,
          .Hv = c.linear_num_value_heads,
          .K = c.linear_key_head_dim,
          .V = c.linear_value_head_dim,
          .conv_channels = c.conv_dim(),
          .taps = c.linear_conv_kernel_dim,
          .kv_layers = c.count(LayerKind::full_attention) + (mtp ? 1 : 0),
          .Hkv = c.num_key_value_heads,
          .D = c.head_dim};
}

namespace {

void copy_taps(const Taps& taps, int64_t layer, View<2> hidden) {
  for (size_t i = 0; i < taps.layers.size(); i++) {
    if (taps.layers[i] != layer) continue;
    for (int64_t t = 0; t < hidden.shape[0]; t++) {
      std::copy_n(hidden.f32(t), hidden.shape[1], taps.out.f32(t, static_cast<int64_t>(i) * hidden.shape[1]));
    }
  }
}

}  // namespace

void HybridModel::forward(const Rows& rows, const int32_t* ids, bool prefill, const StatePool& pool, View<2> hidden,
                          const Taps& taps) {
  decoder_.ops().embedding({.ids = ids, .table = weights_.embed_tokens, .out = hidden}, decoder_.stream());
  int64_t gdn_layer = 0, kv_layer = 0, done = -1;
  copy_taps(taps, done, hidden);
  for (const LayerWeights& layer : weights_.layers) {
    if (layer.kind == LayerKind::gdn) {
      const GdnLayerState state{.rollback = pool.options().rollback,
                                .state = pool.gdn(gdn_layer),
                                .snapshots = pool.snapshots(gdn_layer),
                                .conv_ring = pool.conv_ring(gdn_layer),
                                .grain = pool.grain(),
                                .prefill = prefill};
      decoder_.gdn_layer(layer, rows, state, hidden);
      gdn_layer++;
    } else {
      decoder_.attention_layer(layer, rows, pool.kv(kv_layer++), hidden);
    }
    copy_taps(taps, ++done, hidden);
  }
  decoder_.norm(weights_.norm, hidden, hidden);
}

void HybridModel::commit_snapshots(const Rows& rows, const int32_t* kept, const StatePool& pool) {
  for (int64_t layer = 0; layer < pool.shape().gdn_layers && pool.plan().snapshots_per_seat > 0; layer++) {
    decoder_.ops().snapshot_commit(
        {.rows = rows, .kept = kept, .state = pool.gdn(layer).checkpoint, .snapshots = pool.snapshots(layer)},
        decoder_.stream());
  }
}

}  // namespace deltaring
