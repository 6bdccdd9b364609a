// Prompt lookup: the end of a request's tokens has occurred before; draft what followed then.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "draft/drafter.h"

namespace deltaring {

// Which of several earlier occurrences of the same length is continued.
enum class Occurrence {
  most_recent,  // follows edits of code and the phase of a loop
  earliest,     // as vLLM
};

// The longest match counts first. 2..4 drafts often; where verify rows are dear (large batches, MoE), 5..5 drafts
// rarely and well.
struct NgramOptions {
  int32_t min_match = 2;  // shortest suffix that is looked up, >= 1
  int32_t max_match = 4;  // longest, min_match..32
  Occurrence occurrence = Occurrence::most_recent;
};

// Drafts are copies of the request's own tokens and point masses (no q). Let the match end before token e of N: the
// drafts are tokens e, e+1, ..., and behind N they go on with what was just drafted, so a text of period N - e
// continues in its period. With a match there are always as many drafts as asked, otherwise none.
//
// Per seat there is one hash index for each match length: O(1) amortised work per new token and length, 8 to 16 bytes
// per token and length (24 to 48 bytes per token by default), no copy of the tokens.
class NgramDrafter final : public Drafter {
 public:
  // Throws Error when 1 <= min_match <= max_match <= 32 does not hold.
  explicit NgramDrafter(const NgramOptions& options = {});

  const char* name() const override { return "ngram"; }
  bool draws() const override { return false; }

  void reset(int32_t seat) override;

  // proposals [requests]. Seat -1 gets no drafts. A history that does not extend the seat's last one is recognised when
  // it is shorter or differs in the 16 tokens before the old end, and is then indexed afresh. Otherwise matches may be
  // missed, but whatever is drafted did follow an occurrence in the tokens given now.
  // Throws Error when the spans differ in length or a history is longer than 2^30 tokens.
  void propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) override;

  size_t bytes() const;  // of all indexes

 private:
  struct Index {
    std::vector<std::vector<int32_t>>
        tables;         // [max_match - min_match + 1] power-of-two hash tables of ends, 0 = empty
    int64_t done = 0;   // all n-grams that end before or at token `done` are in the tables
    uint64_t tail = 0;  // fingerprint of the tokens before `done`
  };

  void update(Index& index, std::span<const int32_t> tokens) const;
  int64_t match(Index& index, std::span<const int32_t> tokens) const;

  NgramOptions options_;
  std::unordered_map<int32_t, Index> seats_;
};

}  // namespace deltaring
