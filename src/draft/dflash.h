// DFlash: every row of the block says its own token; nothing ties the drafts to each other.
#pragma once
#include "draft/block_drafter.h"

namespace deltaring {

class DFlashDrafter final : public BlockDrafter {
 public:
  DFlashDrafter(BlockWeights weights, HybridModel& model, StatePool& pool, int64_t valid_ids)
      : BlockDrafter(std::move(weights), model, pool, valid_ids) {}

 private:
  void choose(const Predictions& predictions, std::span<const DraftRequest> requests,
              std::span<Proposal> proposals) override {
    for (int64_t k = 0; k < predictions.positions(); k++) draw(predictions, k, requests, proposals);
  }
};

}  // namespace deltaring
