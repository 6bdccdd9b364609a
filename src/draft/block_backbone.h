// What the block drafters share: a small transformer that attends over projections of the target's own hidden states
// and over one block of the anchor and mask tokens.
//
// Keys and values of committed positions come from the taps of the step that committed them and stay, made when a block
// needs them; those of a block lie at and behind the cursor's pos in the same pages and are written over. So drafts
// leave nothing to undo, and a copied, cached or exported seat takes the context along.
#pragma once
#include <span>
#include <vector>

#include "draft/block_weights.h"
#include "draft/drafter.h"
#include "draft/pending_rows.h"
#include "model/hybrid.h"

namespace deltaring {

// KV of the drafter's layers is part of the state's shape.
void add_draft_kv(StateShape& shape, const BlockConfig& config);

// Which rows of a list of predictions are whose: packed by draft position, then by request.
struct Predictions {
  std::vector<std::vector<int32_t>> requests;  // [positions][..] indices of requests that want that draft, ascending
  std::vector<int64_t> first{0};               // [positions + 1] the position's first row

  int64_t rows() const { return first.back(); }
  int64_t positions() const { return static_cast<int64_t>(requests.size()); }
};

class BlockBackbone {
 public:
  // What a backbone allocates: for passes of up to max_tokens tokens.
  static int64_t scratch_bytes(const BlockConfig& config, int64_t max_tokens, int64_t seats);

  // The weights outlive the backbone. The pool's shape has its KV (add_draft_kv).
  BlockBackbone(const BlockWeights& weights, HybridModel& model, StatePool& pool);
  BlockBackbone(const BlockBackbone&) = delete;

  // Takes the rows over; their context is written before the next block of their seat.
  void extend(const DraftContext& context);

  int64_t waiting(int32_t seat) const { return static_cast<int64_t>(pending_.waiting(seat).size()); }
  void catch_up(std::span<const int32_t> seats);

  // Runs a block for every request whose context ends where its anchor stands: as many rows as its drafts need.
  // Leaves what is behind the final norm of the predicting rows in hidden().
  Predictions run(std::span<const DraftRequest> requests);
  View<2> hidden(int64_t first, int64_t count) const { return hidden_.rows(first, count); }  // [count, H]

 private:
  struct Block;  // packed rows of all blocks

  static ScratchList<BlockBackbone> scratch(const BlockConfig& config, int64_t max_tokens, int64_t seats);
  void write(std::span<const PendingRows::Row> list);
  // x += sublayer(norm(x)), or with convolutions what they make of it.
  template <class Sublayer>
  void residual(const std::vector<float>& input_norm, const DynamicConvWeights& conv, const Rows& rows, View<2> x,
                const Sublayer& sublayer);
  void attention(const BlockLayerWeights& w, int64_t layer, const Rows& rows, View<2> in, View<2> out, bool accumulate);
  // Keys and values of x, made in k and v, go to the layer's pages.
  void key_value(const BlockLayerWeights& w, const Rows& rows, int64_t layer, View<2> x, View<2> k, View<2> v);
  void norm(const std::vector<float>& w, View<2> x, View<2> out);
  void head_norm(const std::vector<float>& w, View<3> x);
  void rope(const Rows& rows, View<3> x);

  const BlockWeights& weights_;
  const BlockConfig& config_;
  HybridModel& model_;
  StatePool& pool_;
  const Rotary rotary_;
  PendingRows pending_;
  Arena arena_;
  View<2> taps_, context_;                      // [max_tokens, n H], [max_tokens, H]
  View<2> context_k_, context_v_;               // [max_tokens, Hkv D]
  View<2> x_, normed_, mixed_, sub_, kernels_;  // [seats block, ..] H four times, 2 taps G
  View<2> q_, k_, v_, attended_, gate_, up_;    // Hq D, Hkv D twice, Hq D, I twice
  View<2> hidden_;                              // [seats drafts, H]
};

}  // namespace deltaring
