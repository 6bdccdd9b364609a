#include "spec/budget.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "base/draw.h"
#include "base/error.h"
#include "base/rng.h"
#include "spec/accept.h"
#include "support/misfit.h"

namespace deltaring::test {
namespace {

using Survival = std::vector<std::vector<float>>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(StepCost, IsLinearBetweenWhatWasMeasured) {
  const StepCost cost({{.tokens = 1, .seconds = 2}, {.tokens = 4, .seconds = 5}, {.tokens = 8, .seconds = 4}});
  EXPECT_EQ(cost.seconds(0), 2);
  EXPECT_EQ(cost.seconds(1), 2);
  EXPECT_EQ(cost.seconds(3), 4);
  EXPECT_EQ(cost.seconds(8), 5) << "a longer step that took less is noise";
  EXPECT_EQ(cost.seconds(16), 10);
}

TEST(StepCost, RefusesWhatIsNoTable) {
  EXPECT_THROW(StepCost({}), Error);
  EXPECT_THROW(StepCost({{.tokens = 0, .seconds = 1}}), Error);
  EXPECT_THROW(StepCost({{.tokens = 2, .seconds = 1}, {.tokens = 2, .seconds = 1}}), Error);
  for (const double bad : {0.0, -1.0, std::nan(""), static_cast<double>(INFINITY)}) {
    EXPECT_THROW(StepCost({{.tokens = 1, .seconds = bad}}), Error);
  }
}

TEST(Survival, IsTheRunningProduct) {
  EXPECT_EQ(survival_of(std::array{0.5f, 0.5f, 1.0f, 2.0f}), (std::vector{0.5f, 0.25f, 0.25f, 0.25f}));
  EXPECT_EQ(survival_of(std::array{0.5f, kNan, 1.0f}), (std::vector{0.5f, 0.0f, 0.0f}));
  EXPECT_EQ(survival_of(std::array{-1.0f, 1.0f}), (std::vector{0.0f, 0.0f}));
}

TEST(Budget, IsTheBestRateOfAll) {
  std::mt19937 rng(3);
  std::uniform_real_distribution<float> uniform01(0, 1);
  for (int trial = 0; trial < 300; trial++) {
    Survival survival(1 + rng() % 5);
    std::vector<float> all;
    for (auto& row : survival) {
      std::vector<float> confidence(rng() % 8);
      for (float& c : confidence) c = uniform01(rng);
      row = survival_of(confidence);
      for (const float s : row)
        if (s >= 1e-6f) all.push_back(s);
    }
    std::sort(all.rbegin(), all.rend());
    std::vector<double> seconds{1};  // jagged: steps as of graph tiers
    for (int i = 0; i < 40; i++) seconds.push_back(seconds.back() + (rng() % 3 == 0 ? uniform01(rng) : 0));
    double best = 0, tokens = static_cast<double>(survival.size());
    size_t want = 0;
    for (size_t m = 0; m <= all.size(); m++) {
      if (m) tokens += all[m - 1];
      if (tokens / seconds[m] > best) best = tokens / seconds[m], want = m;
    }
    EXPECT_EQ(draft_budget(survival, [&](int64_t m) { return seconds[m]; }), static_cast<int64_t>(want));
  }
}

TEST(Budget, AFlatCostVerifiesEverythingASteepOneNothing) {
  const Survival survival{{0.9f, 0.5f, 0}, {0.8f}};
  EXPECT_EQ(draft_budget(survival, [](int64_t) { return 1.0; }), 3) << "what cannot survive is never counted on";
  EXPECT_EQ(draft_budget(survival, [](int64_t m) { return 1.0 + static_cast<double>(m); }), 0);
}

TEST(Admit, TakesTheLikeliestAndAlwaysAPrefix) {
  const Survival survival{{0.9f, 0.5f, 0.4f}, {0.8f, 0.5f}, {}, {0.5f}};
  EXPECT_EQ(admit(survival, 0), (std::vector{0, 0, 0, 0}));
  EXPECT_EQ(admit(survival, 2), (std::vector{1, 1, 0, 0}));
  EXPECT_EQ(admit(survival, 3), (std::vector{1, 1, 0, 1})) << "ties go to the earlier position";
  EXPECT_EQ(admit(survival, 4), (std::vector{2, 1, 0, 1})) << "then to the earlier request";
  EXPECT_EQ(admit(survival, 99), (std::vector{3, 2, 0, 1}));
}

// Drafts from q are cut by a scheduler whose confidences depend on what was drawn before them. One request, a law of
// three tokens, many windows: the first tokens must follow p.
struct Toy {
  static constexpr int kVocab = 3, kDrafts = 3, kTokens = 4, kRuns = 60'000;
  static constexpr std::array<float, kVocab> p{0.5f, 0.3f, 0.2f}, q{0.2f, 0.3f, 0.5f};

  // How badly the tokens of many runs fit; `fresh`: draft coins of their own in every step.
  static double misfit_of_tokens(bool fresh, bool peeks) {
    std::array<std::vector<int>, kTokens> counts;
    counts.fill(std::vector<int>(kVocab));
    for (uint64_t seed = 0; seed < kRuns; seed++) {
      // A tier: all three drafts cost what one does, so that the budget is three or none.
      const StepCost tier({{.tokens = 1, .seconds = 1}, {.tokens = 2, .seconds = 1.7}, {.tokens = 4, .seconds = 1.7}});
      VerifyScheduler scheduler(tier);
      std::vector<int32_t> tokens{0};
      while (static_cast<int>(tokens.size()) <= kTokens) {
        const auto position = static_cast<int64_t>(tokens.size());
        const uint64_t coins = fresh ? step_seed(seed, position - 1) : seed;
        Proposal proposal;
        for (int i = 0; i < kDrafts; i++) {
          const int32_t token = sample(q.data(), kVocab, uniform(coins, position + i, Coin::draft));
          const float first = peeks ? 0.9f : 0.3f;
          const bool bad = peeks ? token == 2 : i > 0 && proposal.tokens.back() == 2;
          proposal.tokens.push_back(token);
          proposal.q.insert(proposal.q.end(), q.begin(), q.end());
          proposal.confidence.push_back(bad ? 0 : i == 0 ? first : 0.9f);
        }
        const DraftRequest request{.seat = 0, .drafts = kDrafts, .tokens = tokens, .sampling = {}, .seed = coins};
        proposal.shorten(static_cast<size_t>(scheduler.plan({&request, 1}, {&proposal, 1})[0]));
        const size_t m = proposal.tokens.size();
        std::vector<float> law;
        for (size_t i = 0; i <= m; i++) law.insert(law.end(), p.begin(), p.end());
        const Verdict v = accept_sampled(proposal.tokens, {.q = proposal.q.data(), .width = kVocab}, law.data(), kVocab,
                                         seed, position);
        tokens.insert(tokens.end(), proposal.tokens.begin(), proposal.tokens.begin() + v.accepted);
        tokens.push_back(v.next);
      }
      for (int i = 0; i < kTokens; i++) counts[i][tokens[i + 1]]++;
    }
    double worst = 0;
    for (const auto& c : counts) worst = std::max(worst, misfit({p.begin(), p.end()}, c, kRuns));
    return worst;
  }
};

TEST(Scheduler, KeepsTheLaw) { EXPECT_LT(Toy::misfit_of_tokens(true, false), 1); }

// What would go wrong: a confidence that knows its own draft, and draft coins that come back in the next step, whose
// budget has seen them.
TEST(Scheduler, MutantsBreakTheLaw) {
  EXPECT_GT(Toy::misfit_of_tokens(true, true), 1);
  EXPECT_GT(Toy::misfit_of_tokens(false, false), 1);
}

TEST(Scheduler, NewRequestsAreCountedOnUntilTheyWereSeen) {
  VerifyScheduler scheduler(StepCost({{.tokens = 1, .seconds = 1}, {.tokens = 5, .seconds = 3}}));
  const std::vector<int32_t> tokens{1};
  const DraftRequest request{.seat = 3, .drafts = 4, .tokens = tokens, .sampling = {}, .seed = 0};
  const Proposal bad{.tokens = {1, 1, 1, 1}, .confidence = {0.1f, 0.1f, 0.1f, 0.1f}};
  const auto plan = [&](const Proposal& p) { return scheduler.plan({&request, 1}, {&p, 1})[0]; };
  EXPECT_EQ(plan(bad), 4) << "the budget of a first step";
  EXPECT_EQ(plan(bad), 0);
  scheduler.forget(3);
  EXPECT_EQ(plan(bad), 4);
  EXPECT_EQ(plan({}), 0) << "no drafts, none to verify";
}

}  // namespace
}  // namespace deltaring::test
