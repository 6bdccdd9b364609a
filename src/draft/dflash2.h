// DFlash 2: convolutions tie the rows of a block together (in the backbone), and a selector walks a path through the
// best candidates of each row.
#pragma once
#include "draft/block_drafter.h"

namespace deltaring {

// With the top candidates of each row, their logits U and codebooks A, S of predecessors and successors:
//   score_j(a -> b) = U_j(b) + sum_r A[a, r] (P h_j)_r S[b, r],  a = the anchor, then the draft before.
// Greedy: the best score, of equal ones the candidate of the larger logit. Sampled: q = softmax(score / temperature)
// over the candidates; top_k and the like act on the target alone.
class DFlash2Drafter final : public BlockDrafter {
 public:
  static ScratchList<DFlash2Drafter> scratch(const BlockConfig& config, int64_t seats);
  DFlash2Drafter(BlockWeights weights, HybridModel& model, StatePool& pool, int64_t valid_ids);

 private:
  bool law_is_dense() const override { return weights_.config.selector_rank == 0; }
  void choose(const Predictions& predictions, std::span<const DraftRequest> requests,
              std::span<Proposal> proposals) override;
  // Of the row of z that is prediction `row`, largest logit first.
  Contenders candidates_of(const View<2>& z, int64_t i, int64_t row);
  // One position's draft of one request: `candidates` with their scores.
  void select(const DraftRequest& request, const std::vector<int32_t>& candidates, const std::vector<double>& scores,
              Proposal& proposal) const;

  Arena arena_;
  View<2> projected_, before_;  // [seats, R]: P h, A[predecessor]
  View<2> behind_;              // [top k, R]: S[candidates]
};

}  // namespace deltaring
