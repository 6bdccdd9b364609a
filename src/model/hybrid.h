// The hybrid layer stack: token ids in, hidden states and logits out, state through the pool.
#pragma once
#include <span>

#include "model/decoder.h"

namespace deltaring {

// What a request's state looks like, with or without the KV of the MTP layer.
StateShape state_shape(const ModelConfig& config, bool mtp);
// The MTP layer's KV counts where the model has one.
StateShape state_shape(const Weights& weights);

// The table itself. Throws Error(unsupported) naming an op that the hybrid stack needs and the table lacks.
const OpTable& check_ops(const OpTable& ops);

// Where forward leaves copies of the residual stream, for a drafter.
struct Taps {
  std::span<const int64_t> layers;  // behind which, in [-1, L); -1 = the embedding
  View<2> out;                      // [tokens, layers H] f32, side by side
};

class HybridModel {
 public:
  // Steps of up to max_tokens tokens. Throws as check_ops.
  HybridModel(Weights weights, const OpTable& ops, Stream& stream, int64_t max_tokens);
  HybridModel(const HybridModel&) = delete;

  // Runs the rows through all layers; appends records, conv rows and KV, moves no cursor. prefill: every row token is
  // accepted, so rows.fold_to may lie inside a row. hidden [tokens, H]: output of the final norm.
  void forward(const Rows& rows, const int32_t* ids, bool prefill, const StatePool& pool, View<2> hidden,
               const Taps& taps = {});

  // logits [n, vocab_size] of hidden [n, H].
  void logits(View<2> hidden, View<2> out) { decoder_.linear(hidden, weights_.lm_head, out); }

  // Under snapshot: the states of all layers become those behind the kept[b] >= 1 accepted tokens of row b.
  void commit_snapshots(const Rows& rows, const int32_t* kept, const StatePool& pool);

  StateShape state_shape() const { return deltaring::state_shape(weights_); }
  const Weights& weights() const { return weights_; }
  const ModelConfig& config() const { return weights_.config; }
  Decoder& decoder() { return decoder_; }

 private:
  const Weights weights_;
  Decoder decoder_;
};

}  // namespace deltaring
