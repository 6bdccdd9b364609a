// What broke in other engines when states are rolled back, copied, freed and taken over: tests by the id of the report.
#include <gtest/gtest.h>

#include <cmath>

#include "spec/schedules.h"
#include "support/counting_side.h"
#include "support/pool_pieces.h"
#include "support/refusal.h"

namespace deltaring::test {
namespace {

// The commit modes of the field: a ring on the grid, a ring folded each step, snapshots.
struct Mode {
  const char* name;
  FoldPolicy policy;
  StateRollback rollback;
};
constexpr Mode kModes[] = {{"grid", FoldPolicy::grid, StateRollback::replay},
                           {"every", FoldPolicy::every, StateRollback::replay},
                           {"snapshot", FoldPolicy::grid, StateRollback::snapshot}};

class StateField : public testing::TestWithParam<Mode> {
 protected:
  RigOptions options(int64_t seats, int64_t T = 4) const {
    return {.seats = seats, .T = T, .context = 256, .policy = GetParam().policy, .rollback = GetParam().rollback};
  }
  bool reaches_back() const {
    return GetParam().policy == FoldPolicy::grid && GetParam().rollback == StateRollback::replay;
  }
  const Weights weights_ = random_model(mini_config(), 21);
};

std::vector<int32_t> prompt_of(size_t length, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> prompt(length);
  for (int32_t& id : prompt) id = static_cast<int32_t>(rng() % 48);
  return prompt;
}

void rewind(Rig& rig, Sequence& s, int64_t pos) {
  rig.pool.rewind(s.seat, pos);
  s.tokens.resize(static_cast<size_t>(pos) + 1);
}

// The same request in another seat.
Sequence moved(Sequence s, int32_t seat) {
  s.seat = seat;
  return s;
}

TEST_P(StateField, Field_A14_SideStateEqualsTheAcceptedTokens) {
  Rig rig(weights_, options(5));
  CountingSide side(5);
  rig.pool.attach(side);
  ScriptedDrafter drafter(3, 48);
  rig.use(&drafter);
  const auto expect = [&](const Sequence& s, const char* what) {
    EXPECT_EQ(side.tokens(s.seat), static_cast<int64_t>(s.tokens.size()) - 1) << what;
    EXPECT_EQ(side.cursor(s.seat), rig.pool.cursor(s.seat)) << what;
    EXPECT_FALSE(side.broken) << what;
  };
  const Plain plain = decode_plain(weights_, options(1), prompt_of(70, 1), 120);
  Sequence s = rig.start(prompt_of(70, 1));  // two chunks
  expect(s, "prefill");
  const auto run = [&](Sequence& at, int steps, const char* what) {
    drafter.truth(at.seat, plain.tokens);
    for (int i = 0; i < steps; i++) {
      at.max_drafts = 3;
      ASSERT_EQ(step_and_compare(rig, {&at}, {&plain}), "");
      expect(at, what);
    }
  };
  run(s, 10, "step");
  Sequence copy = moved(s, rig.pool.copy(s.seat));
  expect(copy, "copy");
  const Cursor c = rig.pool.cursor(s.seat);
  rewind(rig, s, reaches_back() ? c.folded : c.pos), expect(s, "rewind");
  const int32_t cached = rig.pool.snapshot(copy.seat, static_cast<int64_t>(copy.tokens.size()) - 1);
  rig.pool.reserve(copy.seat, 256);
  run(s, 5, "step behind a rewind"), run(copy, 5, "step of a copy");
  const std::vector<std::byte> file = rig.pool.export_seat(copy.seat);
  rig.pool.free(s.seat);
  Sequence imported = moved(copy, rig.pool.import_seat(file));
  expect(imported, "import");
  rig.pool.reserve(imported.seat, 256);
  run(imported, 5, "step of an import");
  rig.pool.free(imported.seat), rig.pool.free(copy.seat);
  EXPECT_EQ(rig.pool.own(cached), cached);
  EXPECT_EQ(side.tokens(cached), c.pos);
  rig.pool.free(cached);
  const Sequence fresh = rig.start({1, 2, 3});
  expect(fresh, "a new request");
}

TEST_P(StateField, Field_A7_ARewindBeyondReachIsTypedAndThePromptCanBeRead) {
  Rig rig(weights_, options(1));
  ScriptedDrafter drafter(4, 48);
  rig.use(&drafter);
  const Plain plain = decode_plain(weights_, options(1), prompt_of(20, 2), 80);
  Sequence s = rig.start(prompt_of(20, 2));
  drafter.truth(s.seat, plain.tokens);
  for (int64_t deep = 1; deep <= 30; deep += 7) {
    while (s.tokens.size() < 60) {
      s.max_drafts = 3;
      ASSERT_EQ(step_and_compare(rig, {&s}, {&plain}), "");
    }
    const Cursor before = rig.pool.cursor(s.seat);
    const std::vector<std::byte> state = rig.pool.export_seat(s.seat);
    EXPECT_EQ(refusal([&] { rig.pool.rewind(s.seat, before.folded - deep); }), ErrorKind::out_of_reach);
    EXPECT_EQ(rig.pool.export_seat(s.seat), state) << "refused, and the request could go on";
    // The clean way: the tokens up to there once more, as a prompt.
    rig.pool.free(s.seat);
    const auto cut = static_cast<std::ptrdiff_t>(before.folded - deep + 1);
    s = rig.start(std::vector<int32_t>(plain.tokens.begin(), plain.tokens.begin() + cut));
    EXPECT_EQ(s.tokens.back(), plain.tokens[static_cast<size_t>(cut)]) << deep;
    ASSERT_EQ(step_and_compare(rig, {&s}, {&plain}), "") << deep;
  }
}

TEST_P(StateField, Field_A10_TheStateGrowsByWhatWasVerified) {
  Rig rig(weights_, options(1));
  ScriptedDrafter drafter(5, 48);
  rig.use(&drafter);
  const Plain plain = decode_plain(weights_, options(1), {1, 2, 3}, 150);
  Sequence s = rig.start({1, 2, 3});
  drafter.truth(s.seat, plain.tokens);
  for (int i = 0; s.tokens.size() < 140; i++) {
    const int64_t before = rig.pool.cursor(s.seat).pos;
    drafter.plan(s.seat, {.count = 7 + i % 5, .right = i % 9});  // more than a window of four holds
    s.max_drafts = 7;
    ASSERT_EQ(step_and_compare(rig, {&s}, {&plain}), "");
    EXPECT_EQ(rig.stepper->rows_of(0), 4);
    EXPECT_EQ(s.emitted, std::min(i % 9, 3) + 1);
    EXPECT_EQ(rig.pool.cursor(s.seat).pos, before + s.emitted);
    EXPECT_EQ(rig.pool.cursor(s.seat).pos + 1, static_cast<int64_t>(s.tokens.size()));
  }
}

TEST_P(StateField, Field_A3_StepsWithoutDraftsBetweenStepsWithDrafts) {
  RigOptions o = options(3, 8);
  o.context = 1024;
  Rig rig(weights_, o);
  ScriptedDrafter drafter(6, 48);
  rig.use(&drafter);
  constexpr Guess kPlan[] = {{7, 5}, {0, 0}, {3, 0}, {0, 0}, {7, 7}, {1, 0}};
  std::vector<Plain> plains;
  std::vector<Sequence> sequences;
  for (uint32_t b = 0; b < 3; b++) {
    plains.push_back(decode_plain(weights_, o, prompt_of(5 + b, b), 960));
    sequences.push_back(rig.start(prompt_of(5 + b, b)));
    drafter.truth(sequences[b].seat, plains[b].tokens);
  }
  for (size_t i = 0; i < 300; i++) {
    for (size_t b = 0; b < 3; b++) {
      sequences[b].max_drafts = 7;
      drafter.plan(sequences[b].seat, kPlan[(i + b * (i / 50)) % 6]);
    }
    ASSERT_EQ(
        step_and_compare(rig, {&sequences[0], &sequences[1], &sequences[2]}, {&plains[0], &plains[1], &plains[2]}), "")
        << "step " << i;
  }
}

TEST_P(StateField, Field_A9_AThousandEmptyDraftsAndThenAFullOne) {
  RigOptions o = options(1, 8);
  o.context = 1200;
  Rig rig(weights_, o);
  ScriptedDrafter drafter(7, 48);
  rig.use(&drafter);
  const Plain plain = decode_plain(weights_, o, {4, 5}, 1030);
  Sequence s = rig.start({4, 5});
  drafter.truth(s.seat, plain.tokens);
  for (int i = 0; i < 1010; i++) {
    drafter.plan(s.seat, i < 1000 ? Guess{0, 0} : Guess{7, i % 2 ? 7 : 3});
    s.max_drafts = 7;
    ASSERT_EQ(step_and_compare(rig, {&s}, {&plain}), "") << i;
    if (s.tokens.size() > 1020) break;
  }
}

TEST_P(StateField, Field_A4_ARemainderOfOneTokenJoinsRowsThatVerify) {
  for (const size_t length : {65, 129}) {
    Rig rig(weights_, options(3));
    ScriptedDrafter drafter(8, 48);
    rig.use(&drafter);
    std::vector<Plain> plains;
    for (const size_t n : {size_t{9}, size_t{30}, length})
      plains.push_back(decode_plain(weights_, options(1), prompt_of(n, 9), 60));
    std::vector<Sequence> s;
    const auto start = [&](size_t n) {
      s.push_back(rig.start(prompt_of(n, 9)));
      drafter.truth(s.back().seat, plains[s.size() - 1].tokens);
      EXPECT_EQ(difference(rig, s.back(), 0, plains[s.size() - 1]), "");
    };
    s.reserve(3);
    start(9), start(30);
    for (int i = 0; i < 5; i++) {
      s[0].max_drafts = s[1].max_drafts = 3;
      ASSERT_EQ(step_and_compare(rig, {&s[0], &s[1]}, {&plains[0], &plains[1]}), "");
    }
    start(length);
    for (int i = 0; i < 8; i++) {
      s[0].max_drafts = 3, s[1].max_drafts = 0, s[2].max_drafts = 3;
      ASSERT_EQ(step_and_compare(rig, {&s[2], &s[0], &s[1]}, {&plains[2], &plains[0], &plains[1]}), "");
    }
  }
}

// Drafts that are always wrong, four rows, 200 steps: each state is, byte for byte, that of plain decoding.
TEST_P(StateField, Field_A1_A5_NothingAcceptedLeavesThePlainState) {
  Rig rig(weights_, options(4)), plain(weights_, options(4));
  ScriptedDrafter drafter(9, 48);
  rig.use(&drafter);
  std::vector<Sequence> a, b;
  for (uint32_t i = 0; i < 4; i++) {
    const std::vector<int32_t> truth = decode_plain(weights_, options(1), prompt_of(3 + i, i), 205).tokens;
    a.push_back(rig.start(prompt_of(3 + i, i))), b.push_back(plain.start(prompt_of(3 + i, i)));
    drafter.truth(a[i].seat, truth);
    drafter.plan(a[i].seat, {.count = 3, .right = 0});
  }
  for (int step = 0; step < 200; step++) {
    for (Sequence& s : a) s.max_drafts = 3;
    Sequence* const drafted[] = {&a[0], &a[1], &a[2], &a[3]};
    Sequence* const alone[] = {&b[0], &b[1], &b[2], &b[3]};
    rig.stepper->step(drafted), plain.stepper->step(alone);
  }
  for (size_t i = 0; i < 4; i++) {
    EXPECT_EQ(a[i].tokens, b[i].tokens);
    EXPECT_EQ(rig.pool.export_seat(a[i].seat), plain.pool.export_seat(b[i].seat));
  }
}

TEST_P(StateField, Field_B6_AloneInABatchAndAloneAgain) {
  Rig rig(weights_, options(4)), solo(weights_, options(1));
  Sequence s = rig.start(prompt_of(12, 1)), want = solo.start(prompt_of(12, 1));
  const auto go = [&](std::vector<Sequence*> rows) {
    for (int i = 0; i < 20; i++) {
      rig.stepper->step(rows), solo.step(want);
      ASSERT_EQ(s.tokens, want.tokens);
      ASSERT_EQ(rig.pool.export_seat(s.seat), solo.pool.export_seat(want.seat));
    }
  };
  go({&s});
  std::vector<Sequence> others;
  for (uint32_t i = 0; i < 3; i++) others.push_back(rig.start(prompt_of(5 + 20 * i, 50 + i)));
  go({&others[0], &others[1], &s, &others[2]});
  for (const Sequence& other : others) rig.pool.free(other.seat);
  go({&s});
}

INSTANTIATE_TEST_SUITE_P(, StateField, testing::ValuesIn(kModes),
                         [](const auto& mode) { return std::string(mode.param.name); });

}  // namespace
}  // namespace deltaring::test
