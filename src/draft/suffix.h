// Suffix decoding: the end of a request's tokens has occurred before, perhaps often; draft what followed most, as far
// as the counts support it (arXiv 2411.04975).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "draft/drafter.h"

namespace deltaring {

struct SuffixOptions {
  int32_t max_match = 24;     // longest end of the tokens that is looked up, 1..256
  float max_spec_factor = 1;  // a match of n tokens gives at most floor(n * factor + offset) drafts
  float max_spec_offset = 0;
  float min_token_prob = 0.1f;     // (0, 1]: drafts end where their running probability falls below
  int32_t max_occurrences = 1024;  // the newest so many are counted, >= 1
};

// For each match length: from the occurrences of that end follow the most frequent next token, then of those the most
// frequent next one, and so on; a draft's probability is its share of the occurrences before it, the end itself being
// one of them, which nothing follows yet. Of all match lengths the one with the largest sum of running probabilities is
// drafted; of equals the longest. Equally frequent tokens: the one seen last.
//
// Point masses (no q); the shares are the confidence. Per seat two chains through all positions, by the last token and
// by the last four: 16 to 32 bytes per token, no copy of the tokens. Work of a proposal: max_occurrences *
// max_match * drafts.
class SuffixDrafter final : public Drafter {
 public:
  // Throws Error naming the option that is out of its range.
  explicit SuffixDrafter(const SuffixOptions& options = {});

  const char* name() const override { return "suffix"; }
  bool draws() const override { return false; }
  bool has_confidence() const override { return true; }
  void reset(int32_t seat) override { seats_.erase(seat); }

  // Seat -1 gets no drafts. Histories as for NgramDrafter. Throws Error when the spans differ in length or a history is
  // longer than 2^30 tokens.
  void propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) override;

  size_t bytes() const;  // of all indexes

 private:
  // Ends of n-grams of one length, those with the same hash linked from the newest to the oldest; 0 = none.
  struct Chain {
    std::vector<int32_t> newest;   // by hash, a power of two
    std::vector<int32_t> earlier;  // [done + 1] by end
  };
  struct Index {
    Chain chains[2];
    int64_t done = 0;   // all ends up to `done` are linked
    uint64_t tail = 0;  // fingerprint of the tokens before `done`
  };
  struct Occurrence {
    int32_t end, match;  // tokens before `end` that are the last ones of the history
  };

  // The drafts of one match length.
  struct Candidate {
    Proposal proposal;
    double score = 0;  // the sum of running probabilities
  };

  void update(Index& index, std::span<const int32_t> tokens) const;
  std::vector<Occurrence> occurrences(const Chain& chain, int64_t key, std::span<const int32_t> tokens) const;
  Candidate follow(std::span<const Occurrence> matches, std::span<const int32_t> tokens, int32_t budget) const;

  SuffixOptions options_;
  std::unordered_map<int32_t, Index> seats_;
};

}  // namespace deltaring
