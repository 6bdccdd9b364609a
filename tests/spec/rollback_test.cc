// The other ways to undo rejected tokens: snapshots, and a ring that is folded behind each step.
#include <gtest/gtest.h>

#include <cmath>

#include "spec/schedules.h"

namespace deltaring::test {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

TEST(Snapshot, SchedulesEqualPlainDecodingBitForBit) {
  const Weights weights = random_model(mini_config(), 41);
  for (uint64_t seed = 0; seed < 48; seed++) {
    RigOptions o = schedule_options(seed);
    o.rollback = StateRollback::snapshot, o.T = 1 + static_cast<int64_t>(seed % 8),
    o.checkpoint = kDTypes[seed / 8 % 3];
    EXPECT_EQ(run_schedule(weights, o, seed, 30), "") << "seed " << seed << ", T " << o.T;
  }
}

// Every number of drafts and every number of right ones, one behind the other.
TEST(Snapshot, EveryAcceptance) {
  const Weights weights = random_model(mini_config(), 42);
  for (const DType checkpoint : kDTypes) {
    for (int64_t T = 1; T <= 8; T++) {
      const RigOptions o{.T = T, .context = 1024, .rollback = StateRollback::snapshot, .checkpoint = checkpoint};
      const int32_t drafts = static_cast<int32_t>(T) - 1;
      Rig rig(weights, o);
      ScriptedDrafter drafter(1, 48);
      rig.use(&drafter);
      const Plain plain = decode_plain(weights, o, {1, 2, 3, 4, 5}, 180);
      Sequence s = rig.start({1, 2, 3, 4, 5});
      drafter.truth(s.seat, plain.tokens);
      for (int32_t count = 0; count <= drafts; count++) {
        for (int32_t right = count; right >= 0; right--) {
          drafter.plan(s.seat, {.count = count, .right = right});
          s.max_drafts = drafts;
          ASSERT_EQ(step_and_compare(rig, {&s}, {&plain}), "") << "T " << T << ", " << right << " of " << count;
          EXPECT_EQ(s.emitted, right + 1);
          const Cursor c = rig.pool.cursor(s.seat);
          EXPECT_EQ(c.folded, c.pos) << "the state is plain";
        }
      }
      EXPECT_EQ(rig.stepper->stats().folds, 0);
    }
  }
}

// With f32 states both rollbacks compute the same function in another order of roundings: the same tokens, up to logits
// that lie as close together as the two computations do.
TEST(Snapshot, TokensAreThoseOfReplay) {
  const Weights weights = random_model(mini_config(), 43);
  int64_t same = 0;
  for (int32_t seed = 0; seed < 12; seed++) {
    const std::vector<int32_t> prompt{seed, 2 * seed + 1, 3, 5};
    const Plain replay = decode_plain(weights, {}, prompt, 200);
    const Plain snapshot = decode_plain(weights, {.rollback = StateRollback::snapshot}, prompt, 200);
    for (size_t i = 0; i < replay.logits.size(); i++, same++) {
      double rms = 0, apart = 0;
      for (size_t id = 0; id < 48; id++) {
        rms += double{replay.logits[i][id]} * replay.logits[i][id] / 48;
        apart = std::max(apart, std::fabs(double{replay.logits[i][id]} - snapshot.logits[i][id]));
      }
      ASSERT_LT(apart, 1e-3 * std::sqrt(rms)) << "token " << i << " of prompt " << seed;
      const size_t at = replay.prompt + i;
      if (replay.tokens[at] == snapshot.tokens[at]) continue;
      const float gap = replay.logits[i][static_cast<size_t>(replay.tokens[at])] -
                        replay.logits[i][static_cast<size_t>(snapshot.tokens[at])];
      ASSERT_LE(gap, 2 * apart) << "token " << i << " of prompt " << seed;
      break;
    }
  }
  EXPECT_GT(same, 1000) << "nearly everything was a tie: the test is too mild";
}

TEST(Snapshot, DraftersChangeNothing) {
  const Weights weights = random_model(mini_config(), 44);
  for (const DType checkpoint : kDTypes) {
    expect_drafters_change_nothing(weights, {.T = 5, .rollback = StateRollback::snapshot, .checkpoint = checkpoint},
                                   130);
  }
}

// Under `every` a step is verify, commit and a fold of all records, whoever does it.
TEST(FoldEvery, IsAFoldByHandBehindEachStep) {
  const Weights weights = random_model(mini_config(), 45);
  for (const DType checkpoint : kDTypes) {
    Rig rig(weights, {.policy = FoldPolicy::every, .checkpoint = checkpoint});
    Rig twin(weights, {.policy = FoldPolicy::every, .checkpoint = checkpoint});
    Sequence s = rig.start({7, 8, 9}), t = twin.start({7, 8, 9});
    const int32_t start[] = {0, 1};
    std::vector<float> hidden(32);
    for (int step = 0; step < 30; step++) {
      rig.step(s);
      const Cursor c = twin.pool.cursor(t.seat);
      EXPECT_EQ(c.folded, c.pos);
      Rows rows{.count = 1, .start = start, .seat = &t.seat, .first = &c.pos, .folded = &c.folded, .fold_to = &c.pos};
      twin.model.forward(rows, &t.tokens.back(), false, twin.pool, dense<2>(hidden.data(), DType::f32, {1, 32}));
      twin.pool.commit(t.seat, c.pos, 1);
      const int64_t pos = c.pos + 1;
      rows.first = rows.fold_to = &pos;
      for (int64_t layer = 0; layer < 3; layer++)
        twin.ops.gdn_fold({.rows = rows, .state = twin.pool.gdn(layer), .grain = 0}, *twin.stream);
      twin.pool.commit(t.seat, pos, 0);
      t.tokens.push_back(s.tokens.back());
      ASSERT_EQ(rig.pool.export_seat(s.seat), twin.pool.export_seat(t.seat)) << "step " << step;
    }
    EXPECT_EQ(rig.stepper->stats().folds, 30);
  }
}

}  // namespace
}  // namespace deltaring::test
