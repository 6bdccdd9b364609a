// A block drafter: the backbone and, in the classes of dflash.h, dflash2.h and dspark.h, how drafts are chosen from
// what it says.
#pragma once
#include <memory>
#include <optional>

#include "draft/block_backbone.h"
#include "draft/screen.h"

namespace deltaring {

class BlockDrafter : public Drafter {
 public:
  // Bytes that a drafter of this config allocates for prefills of up to max_tokens tokens.
  static int64_t scratch_bytes(const BlockConfig& config, int64_t max_tokens, int64_t seats);

  const char* name() const override { return name_of(weights_.config.kind()); }
  std::span<const int64_t> taps() const override { return weights_.config.target_layer_ids; }
  void extend(const DraftContext& context) override { backbone_.extend(context); }
  int64_t waiting(int32_t seat) const override { return backbone_.waiting(seat); }
  void catch_up(std::span<const int32_t> seats) override { backbone_.catch_up(seats); }
  // Requests that sample get drafts drawn with Coin::draft and their laws.
  void propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) override;

  const BlockConfig& config() const { return weights_.config; }
  // What the last drafts were chosen from: packed by draft position, then by request. With a screen, what it estimates
  // by.
  View<2> logits() const { return logits_.rows(0, rows_); }      // [rows, vocabulary of the head]
  View<2> hidden() const { return backbone_.hidden(0, rows_); }  // [rows, H]

 protected:
  // valid_ids: ids at and above are padding rows of the target's head and never drafted.
  BlockDrafter(BlockWeights weights, HybridModel& model, StatePool& pool, int64_t valid_ids);

  // Whether a request that samples needs all logits of its rows, not the best ones only.
  virtual bool law_is_dense() const { return true; }

  // Appends to the proposals. The logits of all predictions are there, or with screened() estimates of them.
  virtual void choose(const Predictions& predictions, std::span<const DraftRequest> requests,
                      std::span<Proposal> proposals) = 0;

  // Appends one draft to each proposal of a position: the best, or one drawn from the sampling law, with its q.
  void draw(const Predictions& predictions, int64_t position, std::span<const DraftRequest> requests,
            std::span<Proposal> proposals);
  // The tokens before that position's drafts: the anchor or the draft before.
  std::vector<int32_t> predecessors(const Predictions& predictions, int64_t position,
                                    std::span<const DraftRequest> requests, std::span<const Proposal> proposals) const;
  // Under screened(): ids of the head among which the `count` best of a row are, and their logits. One count serves all
  // rows.
  struct Contenders {
    Ids ids;
    std::vector<float> logits;
  };
  bool screened() const { return screened_; }
  Contenders contenders_of(int64_t row, size_t count);
  // The logits of some ids of a row, as the whole head has them.
  std::vector<float> exact(int64_t row, std::span<const int32_t> ids);
  const Screen& screen() const { return *screen_; }
  int32_t target_id(int32_t own) const { return weights_.target_ids.empty() ? own : weights_.target_ids[own]; }

  View<2> logits(const Predictions& p, int64_t position) const {
    return logits_.rows(p.first[position], p.first[position + 1] - p.first[position]);
  }
  View<2> hidden(const Predictions& p, int64_t position) const {
    return backbone_.hidden(p.first[position], p.first[position + 1] - p.first[position]);
  }

  const BlockWeights weights_;
  HybridModel& model_;
  const int64_t valid_ids_;  // of the drafter's own ids

 private:
  static ScratchList<BlockDrafter> scratch(const BlockConfig& config, int64_t seats);
  const View<2>& head_matrix() const;
  void head(int64_t rows);  // logits of all predictions

  BlockBackbone backbone_;
  Arena arena_;
  View<2> logits_, law_;  // [seats drafts, vocabulary of the head], [1, the same]
  int64_t rows_ = 0;
  std::optional<Screen> screen_;  // of the head
  bool screened_ = false;
  std::vector<Ids> best_;  // [rows] once asked for
};

// The drafter that the weights are one of. They have been bound to a config that was fitted to the model's. All
// referees outlive it.
std::unique_ptr<BlockDrafter> make_block_drafter(BlockWeights weights, HybridModel& model, StatePool& pool,
                                                 int64_t valid_ids);

}  // namespace deltaring
