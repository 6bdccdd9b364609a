#include "draft/drafter.h"

#include "base/error.h"

namespace deltaring {

void begin_proposals(const Drafter& drafter, std::span<const DraftRequest> requests, std::span<Proposal> proposals) {
  check(requests.size() == proposals.size(), "{}: {} proposals for {} requests; one each is needed", drafter.name(),
        proposals.size(), requests.size());
  for (const DraftRequest& request : requests) {
    check(request.tokens.size() <= size_t{1} << 30, "{}: a history of {} tokens; at most 2^30 work", drafter.name(),
          request.tokens.size());
  }
  for (Proposal& proposal : proposals) proposal = {};
}

void check_proposal(const Drafter& drafter, const DraftRequest& request, const Proposal& proposal, int64_t vocab,
                    int64_t valid_ids) {
  const auto& [tokens, q, q_ids, confidence] = proposal;
  const size_t m = tokens.size(), dense = m * static_cast<size_t>(vocab);
  check(m <= static_cast<size_t>(request.drafts), "drafter {} gave {} drafts, at most {} were asked for",
        drafter.name(), m, request.drafts);
  const bool sparse = !q_ids.empty() && m > 0 && q_ids.size() == q.size() && q.size() % m == 0;
  check(q.empty() ? q_ids.empty() : sparse || (q_ids.empty() && q.size() == dense),
        "drafter {} gave {} probabilities and {} ids of them for {} drafts; none, [m, vocab] = {} or as many ids as "
        "probabilities work",
        drafter.name(), q.size(), q_ids.size(), m, dense);
  check(confidence.size() == m || (confidence.empty() && !drafter.has_confidence()),
        "drafter {} gave {} confidences for {} drafts", drafter.name(), confidence.size(), m);
  for (const int32_t id : tokens) {
    check(id >= 0 && id < valid_ids, "drafter {} drafted token {}, ids are [0, {})", drafter.name(), id, valid_ids);
  }
}

}  // namespace deltaring
