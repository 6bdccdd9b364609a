#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "draft/ngram.h"
#include "spec/schedules.h"
#include "support/block_drafters.h"

namespace deltaring::test {
namespace {

TEST(P7, SchedulesEqualPlainDecodingBitForBit) {
  const Weights weights = random_model(mini_config(), 1);
  for (uint64_t seed = 0; seed < 60; seed++)
    EXPECT_EQ(run_schedule(weights, schedule_options(seed), seed, 40), "") << "seed " << seed;
}

TEST(P7, Float32CheckpointsWithPolicyEveryToo) {
  const Weights weights = random_model(mini_config(), 2);
  for (uint64_t seed = 0; seed < 20; seed++) {
    RigOptions o = schedule_options(seed);
    o.policy = FoldPolicy::every, o.checkpoint = DType::f32;
    EXPECT_EQ(run_schedule(weights, o, seed, 40), "") << "seed " << seed;
  }
}

TEST(P7, ThreadsDoNotShow) {
  const Weights weights = random_model(mini_config(), 3);
  const std::vector<int32_t> prompt{1, 2, 3, 4, 5};
  const Plain one = decode_plain(weights, {.threads = 1}, prompt, 30),
              three = decode_plain(weights, {.threads = 3}, prompt, 30);
  EXPECT_EQ(one.tokens, three.tokens);
  EXPECT_EQ(one.logits, three.logits);
}

// The harness can fail: one bit of one weight of a state is enough.
TEST(P7, ADifferentModelIsNoticed) {
  const Weights weights = random_model(mini_config(), 1);
  Weights other = weights;
  other.layers[0].gdn.A_log[0] += 1e-3f;
  const std::vector<int32_t> prompt{1, 2, 3, 4, 5};
  EXPECT_NE(decode_plain(weights, {}, prompt, 20).logits, decode_plain(other, {}, prompt, 20).logits);
}

class Drafters : public ::testing::TestWithParam<const char*> {};

// A rig with the drafter at work in its stepper.
struct Drafting {
  Drafting(const Weights& weights, const std::string& name, RigOptions o) {
    const int64_t vocab = weights.config.vocab_size;
    std::optional<BlockWeights> block;
    if (name != "ngram" && name != "mtp") {
      block = random_block(name, weights.config, std::max<int64_t>(o.T, 2), 9);
      o.block = block->config;
    }
    rig.emplace(weights, o);
    if (name == "ngram") drafter = std::make_unique<NgramDrafter>();
    if (name == "mtp") drafter = std::make_unique<MtpDrafter>(rig->model, rig->pool, vocab);
    if (block) drafter = make_block_drafter(std::move(*block), rig->model, rig->pool, vocab);
    rig->use(drafter.get());
  }
  std::optional<Rig> rig;
  std::unique_ptr<Drafter> drafter;
};

TEST_P(Drafters, GreedyOutputIsPlainOutput) {
  const Weights weights = random_model(mini_config(), 5);
  for (const int64_t T : {1, 2, 3, 5, 8, 16}) {
    Drafting drafting(weights, GetParam(), {.T = T});
    Rig& rig = *drafting.rig;
    for (const size_t length : {1, 7, 64, 130}) {
      std::vector<int32_t> prompt(length);
      for (size_t i = 0; i < length; i++) prompt[i] = static_cast<int32_t>(i * i % 11);
      const Plain plain = decode_plain(weights, {}, prompt, 60);
      Sequence s = rig.start(prompt);
      while (s.tokens.size() < plain.tokens.size()) s.max_drafts = static_cast<int32_t>(T), rig.step(s);
      s.tokens.resize(plain.tokens.size());
      EXPECT_EQ(s.tokens, plain.tokens) << "T " << T << " prompt of " << length;
      rig.pool.free(s.seat);
    }
  }
}

// The law of the first tokens under sampling, drafted or not, against the model's own probabilities.
TEST_P(Drafters, SamplingKeepsTheLaw) {
  ModelConfig config = mini_config();
  config.vocab_size = 12;
  const Weights weights = random_model(config, 7);
  const SamplingParams sampling{.temperature = 0.8f, .top_k = 8, .top_p = 0.95f};
  const std::vector<int32_t> prompt{1, 2, 3, 1, 2, 3, 1, 2};
  constexpr int kRuns = 4000;
  for (const int64_t T : {1, 4}) {
    Drafting drafting(weights, GetParam(), {.T = T});
    Rig& rig = *drafting.rig;
    // Tokens 2 and 3 of the output given token 1: both come out of verify steps.
    std::map<std::vector<int32_t>, int> counts;
    std::map<int32_t, int> firsts;
    for (uint64_t seed = 0; seed < kRuns; seed++) {
      Sequence s = rig.start(prompt, sampling, seed);
      while (s.tokens.size() < prompt.size() + 3) s.max_drafts = static_cast<int32_t>(T), rig.step(s);
      const std::vector<int32_t> head(s.tokens.begin() + prompt.size(), s.tokens.begin() + prompt.size() + 3);
      counts[head]++, firsts[head[0]]++;
      rig.pool.free(s.seat);
    }
    // Expected counts: the chain rule over the model's probabilities, by plain forwards.
    Rig oracle(weights, {.T = 1});
    const auto law = [&](std::vector<int32_t> tokens) {
      const Sequence s = oracle.start(std::move(tokens));
      std::vector<float> p(config.vocab_size);
      oracle.ops.probabilities({.logits = oracle.stepper->logits(),
                                .valid = config.vocab_size,
                                .params = &sampling,
                                .out = dense<2>(p.data(), DType::f32, {1, config.vocab_size})},
                               *oracle.stream);
      oracle.pool.free(s.seat);
      return p;
    };
    double chi2 = 0;
    int cells = 0;
    double rest_expected = kRuns, rest_seen = kRuns;
    const std::vector<float> p0 = law(prompt);
    for (int32_t a = 0; a < config.vocab_size; a++) {
      if (p0[a] == 0) continue;
      std::vector<int32_t> one = prompt;
      one.push_back(a);
      const std::vector<float> p1 = law(one);
      for (int32_t b = 0; b < config.vocab_size; b++) {
        if (p1[b] == 0) continue;
        std::vector<int32_t> two = one;
        two.push_back(b);
        const std::vector<float> p2 = law(two);
        for (int32_t c = 0; c < config.vocab_size; c++) {
          const double expected = double{p0[a]} * p1[b] * p2[c] * kRuns;
          if (expected < 8) continue;
          const double seen = counts[{a, b, c}];
          chi2 += (seen - expected) * (seen - expected) / expected;
          rest_expected -= expected, rest_seen -= seen, cells++;
        }
      }
    }
    chi2 += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    // Wilson-Hilferty: the chi-square quantile at 1 - 1e-6 (4.75 standard deviations).
    const double df = cells, h = 2 / (9 * df), quantile = df * std::pow(1 - h + 4.75 * std::sqrt(h), 3);
    EXPECT_GT(cells, 10);
    EXPECT_LT(chi2, quantile) << GetParam() << " T " << T << ", " << cells << " cells";
  }
}

// Point-mass drafts leave every draw to the target's own coin: sampled output too is plain output, token for token.
TEST(Sampling, NgramDraftsChangeNoToken) {
  const Weights weights = random_model(mini_config(), 7);
  const SamplingParams sampling{.temperature = 0.9f, .top_p = 0.9f};
  for (uint64_t seed = 0; seed < 20; seed++) {
    Rig plain(weights, {.T = 1}), drafted(weights, {.T = 6});
    NgramDrafter ngram;
    drafted.use(&ngram);
    Sequence a = plain.start({1, 2, 3, 1, 2, 3}, sampling, seed), b = drafted.start({1, 2, 3, 1, 2, 3}, sampling, seed);
    while (a.tokens.size() < 80) plain.step(a);
    while (b.tokens.size() < 80) b.max_drafts = 5, drafted.step(b);
    b.tokens.resize(80);
    EXPECT_EQ(a.tokens, b.tokens) << "seed " << seed;
  }
}

// Any acceptance, in batches of rows that come and go, with the drafter's context in the same pages.
TEST_P(Drafters, SchedulesEqualPlainDecodingBitForBit) {
  const std::string name = GetParam();
  const Weights weights = random_model(mini_config(), 1);
  for (uint64_t seed = 100; seed < 110; seed++) {
    RigOptions o = schedule_options(seed);
    o.T = std::max<int64_t>(o.T, 2);
    std::optional<BlockWeights> block;
    if (name != "ngram" && name != "mtp") block = random_block(name, weights.config, o.T, 9), o.block = block->config;
    const MakeDrafter make = [&](Rig& rig) -> std::unique_ptr<Drafter> {
      if (block) return make_block_drafter(*block, rig.model, rig.pool, weights.config.vocab_size);
      if (name == "ngram") return std::make_unique<NgramDrafter>();
      return std::make_unique<MtpDrafter>(rig.model, rig.pool, weights.config.vocab_size);
    };
    EXPECT_EQ(run_schedule(weights, o, seed, 40, make), "") << name << " seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Drafters,
                         ::testing::Values("ngram", "mtp", "dflash", "dflash2", "dspark-vanilla", "dspark-gated",
                                           "dspark-rnn"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Step, DraftsCountTowardsTheStatistics) {
  const Weights weights = random_model(mini_config(), 5);
  Rig rig(weights, {.T = 4});
  ScriptedDrafter drafter(1, 48);
  rig.use(&drafter);
  Sequence s = rig.start({1, 2, 3});
  for (int i = 0; i < 20; i++) s.max_drafts = 3, rig.step(s);
  const SpecStats& stats = rig.stepper->stats();
  EXPECT_EQ(stats.steps, 20);
  EXPECT_EQ(stats.emitted, stats.accepted + stats.steps);
  EXPECT_EQ(static_cast<int64_t>(s.tokens.size()), 4 + stats.emitted);
  EXPECT_EQ(std::accumulate(stats.drafted_at.begin(), stats.drafted_at.end(), int64_t{0}), stats.drafted);
  EXPECT_EQ(std::accumulate(stats.accepted_at.begin(), stats.accepted_at.end(), int64_t{0}), stats.accepted);
}

// Field A10: a drafter that answers with more than the window holds must not move anything past it.
TEST(Step, Field_A10_DraftsBeyondTheWindowAreRefused) {
  class Chatty final : public Drafter {
   public:
    const char* name() const override { return "chatty"; }
    void propose(std::span<const DraftRequest>, std::span<Proposal> proposals) override {
      proposals[0].tokens.assign(7, 1);
    }
  } chatty;
  Rig rig(random_model(mini_config(), 5), {.T = 4});
  rig.use(&chatty);
  Sequence s = rig.start({1, 2, 3});
  s.max_drafts = 3;
  const Cursor before = rig.pool.cursor(s.seat);
  EXPECT_THROW(rig.step(s), Error);
  EXPECT_EQ(rig.pool.cursor(s.seat), before);
}

TEST(Step, NonFiniteLogitsFailTheRowAlone) {
  Weights weights = random_model(mini_config(), 5);
  Rig rig(weights, {.seats = 2});
  Sequence good = rig.start({1, 2, 3}), bad = rig.start({4, 5, 6});
  const GdnState state = rig.pool.gdn(0);
  *state.record_v.f32(bad.seat, 0, 0, 0) = NAN;  // a record of the live window
  Sequence* const rows[] = {&bad, &good};
  rig.stepper->step(rows);
  EXPECT_TRUE(bad.failed);
  EXPECT_FALSE(good.failed);
  EXPECT_EQ(good.emitted, 1);
}

}  // namespace
}  // namespace deltaring::test
