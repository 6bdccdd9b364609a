// What sampling options mean with drafts: the same as without.
#include <gtest/gtest.h>

#include <cmath>

#include "base/draw.h"
#include "base/error.h"
#include "base/rng.h"
#include "draft/ngram.h"
#include "draft/suffix.h"
#include "spec/schedules.h"
#include "support/misfit.h"

namespace deltaring::test {
namespace {

// Drafts drawn from a law of its own over a few ids, as the scores of a path selector are; ids move with the position.
class SelectorDrafter final : public Drafter {
 public:
  SelectorDrafter(int64_t vocab, int64_t width, bool confident) : vocab_(vocab), width_(width), confident_(confident) {}

  const char* name() const override { return "selector"; }
  bool has_confidence() const override { return confident_; }
  void propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) override {
    for (size_t b = 0; b < requests.size(); b++) {
      Proposal& p = proposals[b] = {};
      int32_t last = requests[b].tokens.back();
      for (int32_t i = 0; i < requests[b].drafts; i++) {
        const auto position = static_cast<int64_t>(requests[b].tokens.size()) + i;
        std::vector<float> q;
        double sum = 0;
        for (int64_t c = 0; c < width_; c++) q.push_back(std::exp(static_cast<float>((last * 7 + c * 5) % 11) / 3));
        for (const float x : q) sum += x;
        for (int64_t c = 0; c < width_; c++) {
          p.q.push_back(static_cast<float>(q[c] / sum));
          if (width_ < vocab_) p.q_ids.push_back(static_cast<int32_t>((last + 3 * c) % vocab_));
        }
        if (confident_) p.confidence.push_back(last % 2 ? 0.9f : 0.3f);
        const int32_t column =
            sample(p.q.data() + i * width_, width_, uniform(requests[b].seed, position, Coin::draft));
        last = width_ < vocab_ ? p.q_ids[i * width_ + column] : column;
        p.tokens.push_back(last);
      }
    }
  }

 private:
  const int64_t vocab_, width_;
  const bool confident_;
};

struct Options {
  SamplingParams sampling{.temperature = 1};
  Penalties penalties{};
  std::vector<TokenBias> bias{};
};

Sequence start(Rig& rig, const std::vector<int32_t>& prompt, const Options& o, uint64_t seed) {
  Sequence s{.seat = rig.pool.allocate(),
             .tokens = prompt,
             .sampling = o.sampling,
             .seed = seed,
             .prompt = static_cast<int64_t>(prompt.size()),
             .penalties = o.penalties,
             .bias = o.bias};
  rig.pool.reserve(s.seat, rig.pool.options().kv_tokens / rig.pool.options().seats);
  rig.stepper->prefill(s);
  return s;
}

// The law of the next token by the definitions: logits of a plain forward, penalties from a count of the tokens.
std::vector<double> law_of_next(Rig& oracle, const std::vector<int32_t>& tokens, size_t prompt, const Options& o) {
  const Sequence s = oracle.start(tokens);
  const int64_t vocab = oracle.model.config().vocab_size;
  std::vector<float> z(oracle.stepper->logits().f32(0), oracle.stepper->logits().f32(0) + vocab), p(vocab);
  for (int32_t id = 0; id < vocab; id++) {
    const auto all = std::count(tokens.begin(), tokens.end(), id);
    const auto output = std::count(tokens.begin() + static_cast<std::ptrdiff_t>(prompt), tokens.end(), id);
    if (all > 0) z[id] = z[id] > 0 ? z[id] / o.penalties.repetition : z[id] * o.penalties.repetition;
    z[id] -= o.penalties.frequency * static_cast<float>(output) + (output > 0 ? o.penalties.presence : 0);
    for (const TokenBias& b : o.bias)
      if (b.id == id) z[id] += b.bias;
  }
  oracle.ops.probabilities({.logits = dense<2>(z.data(), DType::f32, {1, vocab}),
                            .valid = vocab,
                            .params = &o.sampling,
                            .out = dense<2>(p.data(), DType::f32, {1, vocab})},
                           *oracle.stream);
  oracle.pool.free(s.seat);
  return {p.begin(), p.end()};
}

struct Kind {
  const char* name;
  std::unique_ptr<Drafter> (*make)(Rig& rig);
  VerifyMode mode = VerifyMode::dense;
};

constexpr int64_t kVocab = 12;

const Kind kKinds[] = {
    {"none", [](Rig&) -> std::unique_ptr<Drafter> { return nullptr; }},
    {"ngram", [](Rig&) -> std::unique_ptr<Drafter> { return std::make_unique<NgramDrafter>(); }},
    {"suffix", [](Rig&) -> std::unique_ptr<Drafter> { return std::make_unique<SuffixDrafter>(); }},
    {"suffix_compact", [](Rig&) -> std::unique_ptr<Drafter> { return std::make_unique<SuffixDrafter>(); },
     VerifyMode::compact},
    {"mtp",
     [](Rig& rig) -> std::unique_ptr<Drafter> { return std::make_unique<MtpDrafter>(rig.model, rig.pool, kVocab); }},
    {"dense_law",
     [](Rig&) -> std::unique_ptr<Drafter> { return std::make_unique<SelectorDrafter>(kVocab, kVocab, false); }},
    {"few_ids", [](Rig&) -> std::unique_ptr<Drafter> { return std::make_unique<SelectorDrafter>(kVocab, 4, false); }},
    {"few_ids_capped",
     [](Rig&) -> std::unique_ptr<Drafter> { return std::make_unique<SelectorDrafter>(kVocab, 4, true); },
     VerifyMode::cap_accept},
    {"few_ids_compact",
     [](Rig&) -> std::unique_ptr<Drafter> { return std::make_unique<SelectorDrafter>(kVocab, 4, true); },
     VerifyMode::compact},
};

class Law : public testing::TestWithParam<Kind> {
 protected:
  static ModelConfig config() {
    ModelConfig c = mini_config();
    c.vocab_size = kVocab;
    return c;
  }
  // The first three tokens, jointly: all but the first come out of verify steps.
  static void expect_law(const Options& o, int runs) {
    const Weights weights = random_model(config(), 7);
    const std::vector<int32_t> prompt{1, 2, 3, 1, 2, 3, 1, 2};
    Rig rig(weights, {.T = 4}), oracle(weights, {.T = 1});
    const std::unique_ptr<Drafter> drafter = GetParam().make(rig);
    const StepCost cost({{.tokens = 1, .seconds = 1}, {.tokens = 4, .seconds = 2.2}});
    rig.use(drafter.get(), {.mode = GetParam().mode, .cost = cost});
    std::vector<int> counts(kVocab * kVocab * kVocab);
    for (int seed = 0; seed < runs; seed++) {
      Sequence s = start(rig, prompt, o, static_cast<uint64_t>(seed));
      while (s.tokens.size() < prompt.size() + 3) s.max_drafts = 3, rig.step(s);
      const int32_t* t = s.tokens.data() + prompt.size();
      counts[(t[0] * kVocab + t[1]) * kVocab + t[2]]++;
      rig.pool.free(s.seat);
    }
    std::vector<double> law(counts.size());
    const auto next = [&](std::vector<int32_t> more) {
      more.insert(more.begin(), prompt.begin(), prompt.end());
      return law_of_next(oracle, more, prompt.size(), o);
    };
    const std::vector<double> p0 = next({});
    for (int32_t a = 0; a < kVocab; a++) {
      if (p0[a] == 0) continue;
      const std::vector<double> p1 = next({a});
      for (int32_t b = 0; b < kVocab; b++) {
        if (p1[b] == 0) continue;
        const std::vector<double> p2 = next({a, b});
        for (int32_t c = 0; c < kVocab; c++) law[(a * kVocab + b) * kVocab + c] = p0[a] * p1[b] * p2[c];
      }
    }
    EXPECT_LT(misfit(law, counts, runs), 1);
    if (!drafter) return;
    const SpecStats& stats = rig.stepper->stats();
    EXPECT_GT(stats.accepted, 0);
    EXPECT_LT(stats.accepted, stats.drafted);
  }
};

TEST_P(Law, OfAWideTemperature) { expect_law({.sampling = {.temperature = 1, .top_k = 20, .top_p = 0.95f}}, 4000); }

TEST_P(Law, OfFilters) {
  expect_law({.sampling = {.temperature = 0.8f, .top_k = 6, .top_p = 0.9f, .min_p = 0.05f}}, 2000);
}

TEST_P(Law, OfPenaltiesAndBias) {
  expect_law({.sampling = {.temperature = 1, .top_k = 20, .top_p = 0.95f},
              .penalties = {.repetition = 1.3f, .presence = 0.5f, .frequency = 0.7f},
              .bias = {{.id = 4, .bias = 1.5f}, {.id = 2, .bias = -100}}},
             2000);
}

INSTANTIATE_TEST_SUITE_P(All, Law, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

// Field G4: penalties and bias that speculation forgets. Greedy output is a function of the tokens alone, so drafts of
// any quality must leave it as it is.
TEST(Penalties, Field_G4_GreedyOutputIsThatOfPlainDecoding) {
  const Weights weights = random_model(mini_config(), 7);
  std::mt19937 rng(4);
  for (int trial = 0; trial < 12; trial++) {
    Options o{.sampling = {},
              .penalties = {.repetition = 1 + static_cast<float>(rng() % 4) / 4,
                            .presence = static_cast<float>(rng() % 5) / 2 - 1,
                            .frequency = static_cast<float>(rng() % 5) / 4}};
    if (trial % 2) o.bias = {{.id = static_cast<int32_t>(rng() % 48), .bias = 3}, {.id = 5, .bias = -100}};
    const std::vector<int32_t> prompt{1, 2, 3, 1, 2, 3, 4};
    Rig plain(weights, {.T = 1}), drafted(weights, {.T = 6});
    Sequence a = start(plain, prompt, o, 0);
    while (a.tokens.size() < 60) plain.step(a);
    ScriptedDrafter scripted(static_cast<uint64_t>(trial), 48);
    SuffixDrafter suffix;
    for (Drafter* drafter : {static_cast<Drafter*>(&scripted), static_cast<Drafter*>(&suffix)}) {
      drafted.use(drafter);
      Sequence b = start(drafted, prompt, o, 0);
      scripted.truth(b.seat, a.tokens);
      while (b.tokens.size() < 60) b.max_drafts = 5, drafted.step(b);
      b.tokens.resize(60);
      EXPECT_EQ(a.tokens, b.tokens) << drafter->name() << " trial " << trial;
      drafted.pool.free(b.seat);
    }
    for (size_t i = prompt.size(); i < a.tokens.size() && trial % 2; i++) EXPECT_NE(a.tokens[i], 5);
  }
}

TEST(Penalties, ChangeTheOutput) {
  const Weights weights = random_model(mini_config(), 7);
  const std::vector<int32_t> prompt{1, 2, 3, 1, 2, 3, 4};
  const auto output = [&](const Options& o) {
    Rig rig(weights, {.T = 1});
    Sequence s = start(rig, prompt, o, 0);
    while (s.tokens.size() < 40) rig.step(s);
    return s.tokens;
  };
  const std::vector<int32_t> plain = output({.sampling = {}});
  const Penalties each[] = {{.repetition = 1.5f}, {.presence = 1.5f}, {.frequency = 1.5f}};
  for (const Penalties& p : each) EXPECT_NE(output({.sampling = {}, .penalties = p}), plain);
  EXPECT_NE(output({.sampling = {}, .bias = {{.id = plain[10], .bias = -100}}}), plain);
}

// Field G5: log-probabilities are missing, or of the first token only.
TEST(Logprobs, Field_G5_EveryTokenHasThoseOfPlainDecoding) {
  const Weights weights = random_model(mini_config(), 7);
  for (const SamplingParams& sampling : {SamplingParams{}, SamplingParams{.temperature = 0.9f, .top_k = 5}}) {
    Rig plain(weights, {.T = 1}), drafted(weights, {.T = 6});
    SuffixDrafter suffix;
    drafted.use(&suffix);
    const std::vector<int32_t> prompt{1, 2, 3, 1, 2, 3, 4};
    std::vector<TokenLogprobs> kept[2];
    std::vector<int32_t> tokens[2];
    for (int on = 0; on < 2; on++) {
      Rig& rig = on ? drafted : plain;
      Sequence s = start(rig, prompt, {.sampling = sampling, .penalties = {.presence = 0.5f}}, 3);
      EXPECT_TRUE(s.logprobs.empty()) << "not asked for";
      rig.pool.free(s.seat);
      s = {.seat = rig.pool.allocate(),
           .tokens = prompt,
           .sampling = sampling,
           .seed = 3,
           .prompt = static_cast<int64_t>(prompt.size()),
           .penalties = {.presence = 0.5f},
           .top_logprobs = 3};
      rig.pool.reserve(s.seat, 512);
      rig.stepper->prefill(s);
      const auto keep = [&] {
        ASSERT_EQ(static_cast<int32_t>(s.logprobs.size()), s.emitted);
        kept[on].insert(kept[on].end(), s.logprobs.begin(), s.logprobs.end());
      };
      keep();
      while (s.tokens.size() < 60) s.max_drafts = 5, rig.step(s), keep();
      ASSERT_EQ(kept[on].size() + prompt.size(), s.tokens.size());
      s.tokens.resize(60), kept[on].resize(60 - prompt.size());
      tokens[on] = s.tokens;
    }
    EXPECT_EQ(tokens[0], tokens[1]);
    for (size_t i = 0; i < kept[0].size(); i++) {
      EXPECT_EQ(kept[0][i].chosen, kept[1][i].chosen) << i;
      EXPECT_EQ(kept[0][i].top, kept[1][i].top) << i;
      EXPECT_EQ(kept[0][i].top_ids, kept[1][i].top_ids) << i;
      EXPECT_LE(kept[0][i].chosen, kept[0][i].top[0]);
      EXPECT_LT(kept[0][i].top[0], 0);
    }
  }
}

// Field G3: top_k 1 that is random under speculation.
TEST(Sampling, Field_G3_TopKOfOneIsGreedy) {
  const Weights weights = random_model(mini_config(), 9);
  const std::vector<int32_t> prompt{1, 2, 3};
  const Plain want = decode_plain(weights, {}, prompt, 30);
  for (const bool few : {false, true}) {
    Rig rig(weights, {.T = 5});
    SelectorDrafter drafter(48, few ? 16 : 48, false);
    rig.use(&drafter);
    Sequence s = rig.start(prompt, {.temperature = 1, .top_k = 1}, 5);
    while (s.tokens.size() < want.tokens.size()) s.max_drafts = 4, rig.step(s);
    s.tokens.resize(want.tokens.size());
    EXPECT_EQ(s.tokens, want.tokens);
  }
}

}  // namespace
}  // namespace deltaring::test
