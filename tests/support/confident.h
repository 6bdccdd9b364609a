// A scripted drafter that claims to know how good its drafts are.
#pragma once
#include "support/scripted.h"

namespace deltaring::test {

class ConfidentDrafter final : public Drafter {
 public:
  ConfidentDrafter(uint64_t seed, int64_t vocab) : scripted(seed, vocab), rng_(seed + 1) {}

  const char* name() const override { return "confident"; }
  bool has_confidence() const override { return true; }
  // Certain, impossible or anything between, at random.
  void propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) override {
    scripted.propose(requests, proposals);
    for (Proposal& p : proposals) {
      for (size_t i = 0; i < p.tokens.size(); i++) {
        const auto roll = rng_() % 10;
        p.confidence.push_back(roll < 4 ? 1.0f : roll == 9 ? 0.0f : static_cast<float>(roll) / 10);
      }
    }
  }

  ScriptedDrafter scripted;

 private:
  std::mt19937_64 rng_;
};

}  // namespace deltaring::test
