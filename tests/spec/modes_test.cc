// Verify modes, simulated acceptance and adaptive windows: none of them changes a bit of what is decoded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "draft/ngram.h"
#include "draft/suffix.h"
#include "spec/schedules.h"
#include "support/confident.h"

namespace deltaring::test {
namespace {

constexpr int64_t kVocab = 48;

StepCost steep() {
  return StepCost({{.tokens = 1, .seconds = 1}, {.tokens = 4, .seconds = 1.5}, {.tokens = 24, .seconds = 6}});
}

class Modes : public testing::TestWithParam<VerifyMode> {};

TEST_P(Modes, DecodeWhatPlainDecodingDoes) {
  const Weights weights = random_model(mini_config(), 11);
  for (uint64_t seed = 0; seed < 20; seed++) {
    RigOptions o = schedule_options(seed);
    o.seats = 3, o.T = 2 + static_cast<int64_t>(seed % 7);
    Rig rig(weights, o);
    ConfidentDrafter drafter(seed, kVocab);
    rig.use(&drafter, {.mode = GetParam(), .cost = steep()});
    std::mt19937_64 rng(seed);
    std::vector<Sequence> sequences;
    std::vector<Plain> plains;
    for (int b = 0; b < 3; b++) {
      std::vector<int32_t> prompt(1 + rng() % 60);
      for (int32_t& id : prompt) id = static_cast<int32_t>(rng() % kVocab);
      plains.push_back(decode_plain(weights, o, prompt, 40 + o.T));
      sequences.push_back(rig.start(prompt));
      drafter.scripted.truth(sequences.back().seat, plains.back().tokens);
    }
    for (bool going = true; going;) {
      std::vector<Sequence*> rows;
      std::vector<const Plain*> oracles;
      for (size_t b = 0; b < 3; b++) {
        if (sequences[b].tokens.size() + static_cast<size_t>(o.T) > plains[b].tokens.size()) continue;
        sequences[b].max_drafts = static_cast<int32_t>(o.T - 1);
        rows.push_back(&sequences[b]), oracles.push_back(&plains[b]);
      }
      going = !rows.empty();
      if (going) {
        ASSERT_EQ(step_and_compare(rig, rows, oracles), "") << "seed " << seed;
      }
    }
    EXPECT_GT(rig.stepper->stats().accepted, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Modes, testing::Values(VerifyMode::dense, VerifyMode::cap_accept, VerifyMode::compact));

// At the same accepted counts the modes leave the same bytes behind, step by step, however many rows they verified.
TEST(VerifyModes, AgreeBitwiseAtTheSameAcceptedCounts) {
  const Weights weights = random_model(mini_config(), 12);
  int64_t capped = 0;
  for (const DType checkpoint : {DType::f32, DType::bf16}) {
    const RigOptions o{.T = 8, .checkpoint = checkpoint};
    Rig compact(weights, o), cap(weights, o), dense(weights, o);
    ConfidentDrafter a(5, kVocab), b(5, kVocab);
    ScriptedDrafter c(6, kVocab);
    compact.use(&a, {.mode = VerifyMode::compact, .cost = steep()});
    cap.use(&b, {.mode = VerifyMode::cap_accept, .cost = steep()});
    dense.use(&c);
    const std::vector<int32_t> prompt{3, 1, 4, 1, 5, 9, 2, 6};
    const Plain plain = decode_plain(weights, o, prompt, 80);
    Sequence s[] = {compact.start(prompt), cap.start(prompt), dense.start(prompt)};
    a.scripted.truth(s[0].seat, plain.tokens), b.scripted.truth(s[1].seat, plain.tokens);
    c.truth(s[2].seat, plain.tokens);
    while (s[0].tokens.size() + 8 < plain.tokens.size()) {
      for (Sequence& one : s) one.max_drafts = 7;
      compact.step(s[0]);
      cap.step(s[1]);
      c.plan(s[2].seat, {.count = 7, .right = s[0].emitted - 1});
      dense.step(s[2]);
      ASSERT_EQ(s[0].tokens, s[1].tokens);
      ASSERT_EQ(s[0].tokens, s[2].tokens);
      ASSERT_EQ(compact.pool.export_seat(s[0].seat), cap.pool.export_seat(s[1].seat));
      ASSERT_EQ(compact.pool.export_seat(s[0].seat), dense.pool.export_seat(s[2].seat));
      capped += compact.stepper->rows_of(0) < cap.stepper->rows_of(0);
    }
    EXPECT_LT(compact.stepper->stats().drafted, cap.stepper->stats().drafted);
  }
  EXPECT_GT(capped, 5);
}

TEST(VerifyModes, ThatNeedConfidenceAreRefusedWithoutNamingTheOnesThatWork) {
  Rig rig(random_model(mini_config(), 11), {.T = 4});
  NgramDrafter ngram;
  MtpDrafter mtp(rig.model, rig.pool, kVocab);
  for (Drafter* drafter :
       {static_cast<Drafter*>(&ngram), static_cast<Drafter*>(&mtp), static_cast<Drafter*>(nullptr)}) {
    for (const VerifyMode mode : {VerifyMode::cap_accept, VerifyMode::compact}) {
      try {
        rig.use(drafter, {.mode = mode});
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::unsupported);
        EXPECT_THAT(error.what(), testing::HasSubstr(mode == VerifyMode::compact ? "compact" : "cap-accept"));
        EXPECT_THAT(error.what(), testing::HasSubstr(drafter ? drafter->name() : "none"));
        EXPECT_THAT(error.what(), testing::HasSubstr("static works"));
      }
    }
  }
}

TEST(VerifyModes, WrongConfidencesAndLawsAreRefused) {
  class Broken final : public Drafter {
   public:
    const char* name() const override { return "broken"; }
    bool has_confidence() const override { return confident; }
    void propose(std::span<const DraftRequest>, std::span<Proposal> proposals) override { proposals[0] = proposal; }
    bool confident = true;
    Proposal proposal;
  } broken;
  Rig rig(random_model(mini_config(), 11), {.T = 4});
  const auto expect_refused = [&](bool confident, Proposal proposal) {
    broken.confident = confident, broken.proposal = std::move(proposal);
    rig.use(&broken);
    Sequence s = rig.start({1, 2, 3});
    s.max_drafts = 3;
    const Cursor before = rig.pool.cursor(s.seat);
    EXPECT_THROW(rig.step(s), Error);
    EXPECT_EQ(rig.pool.cursor(s.seat), before);
    rig.pool.free(s.seat);
  };
  expect_refused(true, {.tokens = {1, 2}, .confidence = {0.5f}});
  expect_refused(true, {.tokens = {1, 2}});
  expect_refused(false, {.tokens = {1, 2}, .q = {1, 0, 1}});
  expect_refused(false, {.tokens = {1, 2}, .q = {1, 0, 1, 0}, .q_ids = {1, 2}});
  expect_refused(false, {.tokens = {1, 2}, .q_ids = {1, 2}});
  expect_refused(false, {.tokens = {}, .q = {1}, .q_ids = {1}});
}

// The cost is measured on free seats and leaves nothing behind.
TEST(VerifyModes, MeasuringACostChangesNothing) {
  const Weights weights = random_model(mini_config(), 11);
  Rig rig(weights, {.seats = 3, .T = 5});
  ConfidentDrafter drafter(1, kVocab);
  Sequence before = rig.start({1, 2, 3});
  rig.use(&drafter, {.mode = VerifyMode::compact});
  EXPECT_EQ(rig.pool.free_seats(), 2);
  rig.pool.check_invariants();
  const Plain plain = decode_plain(weights, {}, {1, 2, 3}, 30);
  drafter.scripted.truth(before.seat, plain.tokens);
  while (before.tokens.size() < 25) {
    before.max_drafts = 4;
    ASSERT_EQ(step_and_compare(rig, {&before}, {&plain}), "");
  }
}

TEST(Simulated, AcceptanceHasTheLengthThatWasAskedFor) {
  for (const float temperature : {0.0f, 1.0f}) {
    Rig rig(random_model(mini_config(), 11), {.T = 6, .context = 4096});
    for (const double length : {1.0, 2.0, 3.3, 6.0}) {
      NgramDrafter ngram;
      rig.use(&ngram, {.simulate_acceptance_length = length});
      Sequence s = rig.start({1, 2, 3}, {.temperature = temperature});
      for (int i = 0; i < 400; i++) s.max_drafts = 5, rig.step(s);
      EXPECT_NEAR(rig.stepper->stats().acceptance_length(), length, 0.1);
      EXPECT_EQ(rig.stepper->stats().drafted, 400 * 5) << "windows are full";
      rig.pool.free(s.seat);
    }
    NgramDrafter ngram;
    for (const double bad : {0.5, -1.0, 6.5}) EXPECT_THROW(rig.use(&ngram, {.simulate_acceptance_length = bad}), Error);
  }
}

// A sequence that wants no drafts at all is none of the drafter's business; its neighbour is.
TEST(NoDrafts, AreFollowedByNoDrafter) {
  const Weights weights = random_model(mini_config(), 7);
  const Plain want = decode_plain(weights, {}, {1, 2, 3, 1, 2, 3}, 60);
  Rig rig(weights, {.seats = 2, .T = 4});
  MtpDrafter mtp(rig.model, rig.pool, kVocab);
  rig.use(&mtp);
  Sequence never{.seat = rig.pool.allocate(), .tokens = {1, 2, 3, 1, 2, 3}, .max_drafts = -1}, other = never;
  other.seat = rig.pool.allocate(), other.max_drafts = 3;
  for (Sequence* s : {&never, &other}) {
    ASSERT_TRUE(rig.pool.reserve(s->seat, 80));
    rig.stepper->prefill(*s);
  }
  for (int step = 0; step < 30; step++) {
    if (step == 20) never.max_drafts = 3;  // too late
    const bool both = other.tokens.size() + 4 < want.tokens.size();
    std::vector<Sequence*> rows{&never, &other};
    rows.resize(both ? 2 : 1);
    ASSERT_EQ(step_and_compare(rig, rows, std::vector<const Plain*>(rows.size(), &want)), "");
    EXPECT_EQ(mtp.waiting(never.seat), 0);
    EXPECT_EQ(rig.stepper->rows_of(0), 1);
    if (both) {
      EXPECT_EQ(rig.stepper->rows_of(1), 4);
    }
  }
}

TEST(AdaptiveWindows, ChangeNoToken) {
  const Weights weights = random_model(mini_config(), 7);
  const Plain want = decode_plain(weights, {}, {1, 2, 3, 1, 2, 3}, 60);
  Rig rig(weights, {.T = 8});
  MtpDrafter mtp(rig.model, rig.pool, kVocab);
  SuffixDrafter suffix;
  for (Drafter* drafter : {static_cast<Drafter*>(&mtp), static_cast<Drafter*>(&suffix)}) {
    rig.use(drafter, {.adaptive = true});
    Sequence s = rig.start({1, 2, 3, 1, 2, 3});
    while (s.tokens.size() + 8 < want.tokens.size()) {
      s.max_drafts = 7;
      ASSERT_EQ(step_and_compare(rig, {&s}, {&want}), "");
    }
    rig.pool.free(s.seat);
  }
}

}  // namespace
}  // namespace deltaring::test
