#include "draft/dense_draw.h"

#include <algorithm>

#include "base/draw.h"
#include "base/rng.h"

namespace deltaring {

void draw_drafts(Decoder& decoder, const DenseHead& head, std::span<const int32_t> of,
                 std::span<const DraftRequest> requests, std::span<Proposal> proposals) {
  std::vector<int32_t> best(of.size());
  decoder.ops().argmax({.logits = head.logits, .valid = head.valid_ids, .out = best.data()}, decoder.stream());
  const float* const law = head.law.f32();
  const int64_t width = head.law.shape[1];
  for (size_t row = 0; row < of.size(); row++) {
    const DraftRequest& request = requests[of[row]];
    Proposal& proposal = proposals[of[row]];
    int32_t id = best[row];
    if (request.sampling.temperature != 0) {
      decoder.ops().probabilities({.logits = head.logits.rows(static_cast<int64_t>(row), 1),
                                   .valid = head.valid_ids,
                                   .params = &request.sampling,
                                   .out = head.law},
                                  decoder.stream());
      const auto position = static_cast<int64_t>(request.tokens.size() + proposal.tokens.size());
      id = sample(law, width, uniform(request.seed, position, Coin::draft));
      proposal.q.insert(proposal.q.end(), law, law + width);
      proposal.q_ids.insert(proposal.q_ids.end(), head.target_ids.begin(), head.target_ids.end());
    }
    // A row that holds no number has none; whatever is drafted then is rejected.
    id = std::max(id, 0);
    proposal.tokens.push_back(head.target_ids.empty() ? id : head.target_ids[id]);
  }
}

}  // namespace deltaring
