// A drafter that a test steers: it knows the true continuation and errs on purpose.
#pragma once
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "draft/drafter.h"

namespace deltaring::test {

// So many drafts, of which the first `right` are.
struct Guess {
  int32_t count, right;
};

class ScriptedDrafter final : public Drafter {
 public:
  explicit ScriptedDrafter(uint64_t seed, int64_t vocab) : rng_(seed), vocab_(vocab) {}

  const char* name() const override { return "scripted"; }
  void truth(int32_t seat, std::vector<int32_t> tokens) { truth_[seat] = std::move(tokens); }

  // From now on the seat gets that, as far as it asks for so many.
  void plan(int32_t seat, Guess guess) { plans_[seat] = guess; }

  // Without a plan right for a random number of tokens, then wrong; as many tokens as asked for or fewer, now and then
  // none.
  void propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) override {
    for (size_t b = 0; b < requests.size(); b++) {
      proposals[b] = {};
      if (requests[b].drafts == 0) continue;
      const auto plan = plans_.find(requests[b].seat);
      const int32_t random = draw(requests[b].drafts + 1);
      const int32_t count = plan == plans_.end() ? random : std::min(plan->second.count, requests[b].drafts);
      const int32_t right = plan == plans_.end() ? draw(count + 1) : plan->second.right;
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
  std::map<int32_t, Guess> plans_;
};

// A drafter at its work whose drafts a script replaces: any acceptance, with the drafter's context in the loop.
class Overruled final : public Drafter {
 public:
  Overruled(Drafter& inner, Drafter& script) : inner_(inner), script_(script) {}

  const char* name() const override { return inner_.name(); }
  std::span<const int64_t> taps() const override { return inner_.taps(); }
  void reset(int32_t seat) override { inner_.reset(seat), script_.reset(seat); }
  void extend(const DraftContext& context) override { inner_.extend(context), script_.extend(context); }
  void propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) override {
    inner_.propose(requests, proposals);
    script_.propose(requests, proposals);
  }

 private:
  Drafter &inner_, &script_;
};

}  // namespace deltaring::test
