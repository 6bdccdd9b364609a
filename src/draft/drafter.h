// A drafter guesses the tokens behind the anchor. It may be wrong, never unsound: acceptance keeps the target's law.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/view.h"
#include "ops/rows.h"
#include "ops/sample.h"

namespace deltaring {

// Tokens that became final: row b holds the committed positions first[b], first[b]+1, ... Every position is delivered
// exactly once, in order, by prefill and by each commit.
struct DraftContext {
  Rows rows;
  const int32_t* next;  // [tokens] id of the token behind each position; behind the last one stands the anchor
  View<2> hidden;       // [tokens, H] f32 target hidden after the final norm
  View<2> taps;         // [tokens, n H] f32 residual stream behind the n layers of Drafter::taps, side by side
};

// One request that wants drafts.
struct DraftRequest {
  int32_t seat;
  int32_t drafts;                   // at most so many, >= 0
  std::span<const int32_t> tokens;  // prompt and output, the anchor last; the anchor's position is tokens.size() - 1
  SamplingParams sampling;
  uint64_t seed;  // of this step's draft coins, base/rng.h
};

// m <= drafts tokens for the positions behind the anchor; m may be 0.
struct Proposal {
  std::vector<int32_t> tokens;  // [m]
  // [m, width] the law each token was drawn from with Coin::draft, or empty: point masses, for drafts no coin chose.
  // Column c of draft i stands for id q_ids[i, c], none twice; without q_ids width = vocab and for id c.
  std::vector<float> q;
  std::vector<int32_t> q_ids;
  // [m] or empty: chance in [0, 1] that the target keeps draft i if it keeps those before it. Of a drawn draft it may
  // depend on the drafts before it, never on the draft itself: windows are cut by it, and must not favour what was
  // drawn.
  std::vector<float> confidence;

  // Keeps the first `drafts` drafts.
  void shorten(size_t drafts) {
    if (drafts >= tokens.size()) return;
    const size_t width = q.size() / tokens.size();
    tokens.resize(drafts);
    q.resize(drafts * width);
    if (!q_ids.empty()) q_ids.resize(drafts * width);
    if (!confidence.empty()) confidence.resize(drafts);
  }
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual const char* name() const = 0;
  virtual bool has_confidence() const { return false; }  // every proposal has it
  virtual bool draws() const { return true; }            // at temperature > 0 proposals have a law, drawn from by coins
  // Target layers whose output the context shall hold, -1 = the embedding. Always the same.
  virtual std::span<const int64_t> taps() const { return {}; }
  virtual void reset(int32_t /*seat*/) {}                  // the seat starts a new request
  virtual void extend(const DraftContext& /*context*/) {}  // tokens became final
  // Committed positions of the seat, the newest among them, that the drafter has yet to make its context of before it
  // drafts, and the making of it, which may leave the newest. propose does it where it was not done; done apart, its
  // time can be told.
  virtual int64_t waiting(int32_t /*seat*/) const { return 0; }
  virtual void catch_up(std::span<const int32_t> /*seats*/) {}
  virtual void propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) = 0;
};

// What every propose begins with: empties the proposals. Throws Error(invalid_argument) unless there is one a request,
// or for a history of more than 2^30 tokens.
void begin_proposals(const Drafter& drafter, std::span<const DraftRequest> requests, std::span<Proposal> proposals);

// Throws Error(invalid_argument) for a proposal that breaks the contract, so that a faulty drafter cannot break a step.
void check_proposal(const Drafter& drafter, const DraftRequest& request, const Proposal& proposal, int64_t vocab,
                    int64_t valid_ids);

}  // namespace deltaring
