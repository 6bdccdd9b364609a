// Drafts of drafters that have all logits of their head.
#pragma once
#include "draft/drafter.h"
#include "model/decoder.h"

namespace deltaring {

struct DenseHead {
  View<2> logits;                            // [rows, width]
  View<2> law;                               // [1, width] scratch
  int64_t valid_ids;                         // columns at and above it are never drafted
  std::span<const int32_t> target_ids = {};  // [width] what columns stand for; empty: for ids of the target
};

// Appends a draft to proposals[of[row]] for each row: the best, or for a request that samples one drawn from its law
// with Coin::draft, and the law.
void draw_drafts(Decoder& decoder, const DenseHead& head, std::span<const int32_t> of,
                 std::span<const DraftRequest> requests, std::span<Proposal> proposals);

}  // namespace deltaring
