#include "draft/block_backbone.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/scratch.h"
#include "draft/dynamic_conv.h"

namespace deltaring {

namespace {

void scale(View<2> x, float factor) {
  for (int64_t t = 0; t < x.shape[0] && factor != 1; t++) {
    for (int64_t c = 0; c < x.shape[1]; c++) *x.f32(t, c) *= factor;
  }
}

int64_t taps_width(const BlockConfig& c) { return static_cast<int64_t>(c.target_layer_ids.size()) * c.hidden_size; }

}  // namespace

void add_draft_kv(StateShape& shape, const BlockConfig& config) {
  shape.draft_layers = static_cast<int64_t>(config.layers.size());
  shape.draft_Hkv = config.num_key_value_heads;
  shape.draft_D = config.head_dim;
}

ScratchList<BlockBackbone> BlockBackbone::scratch(const BlockConfig& c, int64_t max_tokens, int64_t seats) {
  const int64_t H = c.hidden_size, n = seats * c.block_size, I = c.intermediate_size;
  const int64_t q_dim = c.num_attention_heads * c.head_dim, kv_dim = c.num_key_value_heads * c.head_dim;
  const bool conv = c.conv_kernel_size > 0;
  const int64_t kernels = conv ? 2 * c.conv_kernel_size * (H / c.conv_group_size) : 0;
  using Own = BlockBackbone;
  return {{&Own::taps_, max_tokens, taps_width(c)},
          {&Own::context_, max_tokens, H},
          {&Own::context_k_, max_tokens, kv_dim},
          {&Own::context_v_, max_tokens, kv_dim},
          {&Own::x_, n, H},
          {&Own::normed_, n, H},
          {&Own::mixed_, conv ? n : 0, H},
          {&Own::sub_, conv ? n : 0, H},
          {&Own::kernels_, n, kernels},
          {&Own::q_, n, q_dim},
          {&Own::k_, n, kv_dim},
          {&Own::v_, n, kv_dim},
          {&Own::attended_, n, q_dim},
          {&Own::gate_, n, I},
          {&Own::up_, n, I},
          {&Own::hidden_, seats * c.drafts(), H}};
}

int64_t BlockBackbone::scratch_bytes(const BlockConfig& c, int64_t max_tokens, int64_t seats) {
  return deltaring::scratch_bytes(scratch(c, max_tokens, seats)) + PendingRows::planned_bytes(seats, taps_width(c));
}

BlockBackbone::BlockBackbone(const BlockWeights& weights, HybridModel& model, StatePool& pool)
    : weights_(weights),
      config_(weights.config),
      model_(model),
      pool_(pool),
      rotary_(make_rotary(config_.head_dim, config_.rope_theta, config_.yarn)),
      pending_(pool, "context of a block drafter", taps_width(config_)) {
  StateShape shape = pool.shape();
  add_draft_kv(shape, config_);
  check(shape.draft_layers == pool.shape().draft_layers && shape.draft_Hkv == pool.shape().draft_Hkv &&
            shape.draft_D == pool.shape().draft_D,
        "the state pool has no room for the drafter's KV; add_draft_kv makes it");
  arena_ = allocate_scratch(*this, scratch(config_, model.decoder().max_tokens(), pool.options().seats),
                            "scratch of the drafter, --chunked-prefill-size");
}

void BlockBackbone::norm(const std::vector<float>& w, View<2> x, View<2> out) {
  model_.decoder().ops().rms_norm({.x = heads_of(x, 0, 1, x.shape[1]),
                                   .w = w.data(),
                                   .eps = config_.rms_norm_eps,
                                   .zero_centred = false,
                                   .out = heads_of(out, 0, 1, out.shape[1])},
                                  model_.decoder().stream());
}

void BlockBackbone::head_norm(const std::vector<float>& w, View<3> x) {
  model_.decoder().ops().rms_norm({.x = x, .w = w.data(), .eps = config_.rms_norm_eps, .zero_centred = false, .out = x},
                                  model_.decoder().stream());
}

void BlockBackbone::rope(const Rows& rows, View<3> x) {
  model_.decoder().ops().rope({.rows = rows,
                               .x = x,
                               .rotary = config_.head_dim,
                               .theta = config_.rope_theta,
                               .frequency = rotary_.frequency.data(),
                               .amplitude = rotary_.amplitude},
                              model_.decoder().stream());
}

// Keys and values of the rows go to the layer's pages.
void BlockBackbone::key_value(const BlockLayerWeights& w, const Rows& rows, int64_t layer, View<2> x, View<2> k,
                              View<2> v) {
  Decoder& decoder = model_.decoder();
  const int64_t Hkv = config_.num_key_value_heads, D = config_.head_dim;
  const View<3> k_heads = heads_of(k, 0, Hkv, D);
  decoder.linear(x, w.k_proj, k);
  decoder.linear(x, w.v_proj, v);
  scale(v, config_.value_scale);
  head_norm(w.k_norm, k_heads);
  rope(rows, k_heads);
  decoder.ops().kv_append({.rows = rows, .k = k_heads, .v = heads_of(v, 0, Hkv, D), .kv = pool_.draft_kv(layer)},
                          decoder.stream());
}

void BlockBackbone::extend(const DraftContext& context) {
  pending_.add(context.rows, context.next, context.taps, [this](auto list) { write(list); });
}

void BlockBackbone::write(std::span<const PendingRows::Row> list) {
  PendingRows::in_passes(list, taps_.shape[0], [this](std::span<const PendingRows::Row> some, const Rows& rows) {
    const int64_t tokens = rows.tokens();
    const View<2> taps = taps_.rows(0, tokens), c = context_.rows(0, tokens);
    for (int64_t i = 0; i < tokens; i++) std::copy_n(some[i].data, taps.shape[1], taps.f32(i));
    model_.decoder().linear(taps, weights_.fc, c);
    norm(weights_.hidden_norm, c, c);
    for (size_t i = 0; i < weights_.layers.size(); i++) {
      key_value(weights_.layers[i], rows, static_cast<int64_t>(i), c, context_k_.rows(0, tokens),
                context_v_.rows(0, tokens));
    }
  });
}

template <class Sublayer>
void BlockBackbone::residual(const std::vector<float>& input_norm, const DynamicConvWeights& conv, const Rows& rows,
                             View<2> x, const Sublayer& sublayer) {
  const int64_t n = x.shape[0];
  const View<2> normed = normed_.rows(0, n);
  norm(input_norm, x, normed);
  if (config_.conv_kernel_size == 0) return sublayer(normed, x, true);
  const View<2> mixed = mixed_.rows(0, n), sub = sub_.rows(0, n), kernels = kernels_.rows(0, n);
  model_.decoder().linear(normed, conv.kernel_projection, kernels);
  DynamicConvArgs args{.rows = rows,
                       .x = normed,
                       .base = conv.base_kernel.data(),
                       .dynamic = kernels,
                       .taps = config_.conv_kernel_size,
                       .group = config_.conv_group_size,
                       .side = ConvSide::before,
                       .out = mixed};
  dynamic_conv(args);
  sublayer(mixed, sub, false);
  args.x = sub, args.side = ConvSide::behind, args.accumulate = true, args.out = x;
  dynamic_conv(args);
}

void BlockBackbone::attention(const BlockLayerWeights& w, int64_t layer, const Rows& rows, View<2> in, View<2> out,
                              bool accumulate) {
  Decoder& decoder = model_.decoder();
  const int64_t n = in.shape[0], Hq = config_.num_attention_heads, D = config_.head_dim;
  const View<2> attended = attended_.rows(0, n);
  const View<3> q = heads_of(q_.rows(0, n), 0, Hq, D);
  decoder.linear(in, w.q_proj, q_.rows(0, n));
  head_norm(w.q_norm, q);
  rope(rows, q);
  key_value(w, rows, layer, in, k_.rows(0, n), v_.rows(0, n));
  const BlockAttention& sees = config_.layers[layer];
  decoder.ops().attention({.rows = rows,
                           .q = q,
                           .gate = {},
                           .kv = pool_.draft_kv(layer),
                           .scale = 1 / std::sqrt(static_cast<float>(D)),
                           .whole_row = !sees.causal,
                           .window = sees.window,
                           .sinks = w.sinks.empty() ? nullptr : w.sinks.data(),
                           .out = heads_of(attended, 0, Hq, D)},
                          decoder.stream());
  decoder.linear(attended, w.o_proj, out, accumulate);
}

struct BlockBackbone::Block {
  std::vector<int32_t> start{0}, seat, ids, request;
  std::vector<int64_t> first, drafts;

  Rows rows() const {
    return {
        .count = static_cast<int32_t>(seat.size()), .start = start.data(), .seat = seat.data(), .first = first.data()};
  }
  // Leaves of each block the rows from `first` up to its last prediction, and what x has of them: behind the last
  // attention a row says nothing to those before it, and without convolutions to none.
  View<2> drop_rest(View<2> x, int64_t first, int64_t anchor_rows) {
    int32_t begin = 0;
    for (size_t b = 0; b < drafts.size(); b++) {
      const int64_t rows = anchor_rows - first + drafts[b];
      const float* from = x.f32(start[b] + first);
      std::copy(from, from + rows * x.shape[1], x.f32(begin));
      start[b] = begin, begin += static_cast<int32_t>(rows);
    }
    start.back() = begin;
    return x.rows(0, begin);
  }
};

void BlockBackbone::catch_up(std::span<const int32_t> seats) {
  pending_.catch_up(seats, 0, [this](auto list) { write(list); });
}

Predictions BlockBackbone::run(std::span<const DraftRequest> requests) {
  const int32_t anchor_rows = config_.first_row_predicts ? 0 : 1;
  Block block;
  Predictions out;
  for (size_t i = 0; i < requests.size(); i++) {
    const DraftRequest& r = requests[i];
    const int64_t pos = static_cast<int64_t>(r.tokens.size()) - 1;
    const int64_t drafts = std::min<int64_t>(r.drafts, config_.drafts());
    if (drafts < 1 || !pending_.reach(r.seat, pos)) continue;
    block.request.push_back(static_cast<int32_t>(i));
    block.seat.push_back(r.seat);
    block.first.push_back(pos);
    block.ids.push_back(r.tokens.back());
    // Rows see the whole block, and it was whole in training: fewer rows predict far worse, so all run whatever is
    // asked for, unless no page is left for those behind the drafts.
    const bool room = pool_.reserve(r.seat, pos + config_.block_size);
    const int64_t own_rows = room ? config_.block_size : drafts + anchor_rows;
    block.ids.resize(block.start.back() + static_cast<size_t>(own_rows), static_cast<int32_t>(config_.mask_token_id));
    block.start.push_back(static_cast<int32_t>(block.ids.size()));
    block.drafts.push_back(drafts);
    if (out.positions() < drafts) out.requests.resize(drafts);
    for (int64_t k = 0; k < drafts; k++) out.requests[k].push_back(static_cast<int32_t>(i));
  }
  for (const auto& list : out.requests) out.first.push_back(out.rows() + static_cast<int64_t>(list.size()));
  if (block.ids.empty()) return out;
  catch_up(block.seat);

  Decoder& decoder = model_.decoder();
  const Rows rows = block.rows();
  View<2> x = x_.rows(0, rows.tokens());
  decoder.ops().embedding({.ids = block.ids.data(), .table = model_.weights().embed_tokens, .out = x},
                          decoder.stream());
  scale(x, config_.input_embedding_scale);
  const int32_t gone = config_.conv_kernel_size == 0 ? anchor_rows : 0;
  for (size_t i = 0; i < weights_.layers.size(); i++) {
    const BlockLayerWeights& w = weights_.layers[i];
    residual(w.input_layernorm, w.attention_conv, rows, x, [&](View<2> in, View<2> to, bool accumulate) {
      attention(w, static_cast<int64_t>(i), rows, in, to, accumulate);
    });
    if (i + 1 == weights_.layers.size()) x = block.drop_rest(x, gone, anchor_rows);
    residual(w.post_attention_layernorm, w.mlp_conv, rows, x, [&](View<2> in, View<2> to, bool accumulate) {
      const int64_t n = in.shape[0];
      decoder.mlp(w.mlp, in, gate_.rows(0, n), up_.rows(0, n), to, accumulate);
    });
  }
  norm(weights_.norm, x, x);
  std::vector<int64_t> next = out.first;  // row of each position that the next block fills
  for (int32_t b = 0; b < rows.count; b++) {
    for (int64_t k = 0; k < block.drafts[b]; k++) {
      std::copy_n(x.f32(rows.start[b] + anchor_rows - gone + k), x.shape[1], hidden_.f32(next[k]++));
    }
  }
  return out;
}

}  // namespace deltaring
