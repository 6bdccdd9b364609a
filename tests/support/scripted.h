// A drafter that a test steers: it knows the true continuation and errs on purpose.
#pragma once
#include <map>
#include <random>
#include <vector>

#include "draft/drafter.h"

namespace deltaring::test {

class ScriptedDrafter final : public Drafter {
 public:
  explicit ScriptedDrafter(uint64_t seed, int64_t vocab) : rng_(seed), vocab_(vocab) {}

  const char* name() const override { return "scripted"; }
  void truth(int32_t seat, std::vector<int32_t> tokens) { truth_[seat] = std::move(tokens); }

  // Right for a random number of tokens, then wrong; as many tokens as asked for or fewer, now and then none.
  void propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) override {
    for (size_t b = 0; b < requests.size(); b++) {
      proposals[b] = {};
      if (requests[b].drafts == 0) continue;
      const int32_t count = draw(requests[b].drafts + 1), right = draw(count + 1);
      const std::vector<int32_t>& truth = truth_[requests[b].seat];
      for (int32_t i = 0; i < count; i++) {
        const size_t at = requests[b].tokens.size() + static_cast<size_t>(i);
        const int32_t token = at < truth.size() ? truth[at] : 0;
        proposals[b].tokens.push_back(
            i < right ? token : (token + 1 + draw(static_cast<int32_t>(vocab_) - 1)) % static_cast<int32_t>(vocab_));
      }
    }
  }

 private:
  int32_t draw(int32_t n) { return static_cast<int32_t>(rng_() % static_cast<uint64_t>(n)); }

  std::mt19937_64 rng_;
  int64_t vocab_;
  std::map<int32_t, std::vector<int32_t>> truth_;
};

}  // namespace deltaring::test
