// The MTP head's context is side state: it goes where the seat goes, and what is drafted never depends on the way.
#include "draft/mtp.h"

#include <gtest/gtest.h>

#include "draft/seat_testing.h"

namespace deltaring::test {
namespace {

class Mtp : public testing::Test {
 protected:
  struct World {
    explicit World(const Weights& weights, int64_t seats = 4)
        : rig(weights, {.seats = seats, .T = 5, .context = 128, .checkpoint = DType::bf16}),
          drafter(rig.model, rig.pool, 48) {
      rig.use(&drafter);
    }
    // What the head proposes for the next step.
    std::vector<int32_t> drafts(const Sequence& s, int32_t count = 4) {
      const DraftRequest request{.seat = s.seat, .drafts = count, .tokens = s.tokens, .sampling = {}, .seed = 0};
      Proposal proposal;
      drafter.propose({&request, 1}, {&proposal, 1});
      return proposal.tokens;
    }
    void catch_up(int32_t seat) { drafter.catch_up({&seat, 1}); }
    int64_t waiting(int32_t seat) const { return drafter.waiting(seat); }
    void step(Sequence& s, int count = 1) {
      for (int i = 0; i < count; i++) s.max_drafts = 4, rig.step(s);
    }
    Rig rig;
    MtpDrafter drafter;
  };
  const Weights weights_ = random_model(mini_config(), 51);
  const std::vector<int32_t> prompt_{5, 4, 3, 2, 1, 5, 4};
};

TEST_F(Mtp, DraftsAreAFunctionOfTheTokens) {
  World a(weights_), b(weights_);
  expect_drafts_follow_tokens(a, b, prompt_, 4);
}

TEST_F(Mtp, CopiesDraftOnAsTheOriginalWould) {
  World world(weights_);
  expect_copies_draft_on(world, prompt_, 4, 100);
}

TEST_F(Mtp, AnImportDraftsOn) {
  World from(weights_), to(weights_, 2);
  Rig plain(weights_, {.T = 5, .checkpoint = DType::bf16});
  expect_import_drafts_on(from, to, plain.pool, prompt_, 100);
}

TEST_F(Mtp, ForgeriesAreRefused) {
  World from(weights_), to(weights_, 2);
  expect_forgeries_are_refused(from, to, prompt_);
}

TEST_F(Mtp, ExportsHoldNothingOfOthers) {
  World used(weights_), fresh(weights_);
  expect_exports_hold_nothing_of_others(used, fresh, prompt_);
}

TEST_F(Mtp, RowsThatWaitDoNotShow) {
  World world(weights_), other(weights_);
  expect_waiting_does_not_show(world, other, prompt_, 100);
}

// Behind a rewind nothing is drafted from the old branch: what is left of the newest step's rows is drafted from, and
// further back nothing, until the next step has been there.
TEST_F(Mtp, ARewindForgetsTheDraftsBehindIt) {
  World world(weights_), fresh(weights_);
  Sequence s = world.rig.start(prompt_);
  world.step(s, 6);
  Cursor c = world.rig.pool.cursor(s.seat);
  while (c.pos == c.folded) world.step(s), c = world.rig.pool.cursor(s.seat);
  for (int64_t to = c.pos; to >= c.folded; to--) {
    world.rig.pool.rewind(s.seat, to);
    s.tokens.resize(static_cast<size_t>(to) + 1);
    const std::vector<int32_t> drafts = world.drafts(s);
    Sequence other = s;
    other.tokens.back() = (other.tokens.back() + 1) % 48;
    EXPECT_TRUE(world.drafts(other).empty()) << to << ": another anchor";
    EXPECT_TRUE(to < c.pos || drafts.size() == 4) << to;
    if (drafts.empty()) continue;
    Sequence same = fresh.rig.start({s.tokens.begin(), s.tokens.end() - 1});
    EXPECT_EQ(same.tokens, s.tokens);
    EXPECT_EQ(drafts, fresh.drafts(same)) << to;
    fresh.rig.pool.free(same.seat);
  }
  const std::vector<int32_t> seen = s.tokens;
  world.step(s);
  EXPECT_EQ(s.tokens.size(), seen.size() + 1) << "one token, no drafts";
  const Sequence t = fresh.rig.start(seen);
  EXPECT_EQ(t.tokens, s.tokens);
  EXPECT_EQ(world.drafts(s), fresh.drafts(t));
}

TEST_F(Mtp, ANewRequestDoesNotDraftFromTheOld) {
  World world(weights_, 1), fresh(weights_, 1);
  Sequence old = world.rig.start(prompt_);
  world.step(old, 6);
  world.rig.pool.free(old.seat);
  Sequence unborn{.seat = world.rig.pool.allocate(), .tokens = old.tokens};
  ASSERT_TRUE(world.rig.pool.reserve(unborn.seat, 100));
  EXPECT_TRUE(world.drafts(unborn).empty()) << "the state holds nothing yet";
  world.rig.pool.free(unborn.seat);
  const Sequence a = world.rig.start({9, 8, 7}), b = fresh.rig.start({9, 8, 7});
  EXPECT_EQ(world.drafts(a), fresh.drafts(b));
}

TEST_F(Mtp, LeavesThePoolWhenItGoes) {
  Rig rig(weights_, {.T = 4});
  { const MtpDrafter drafter(rig.model, rig.pool, 48); }
  Sequence s = rig.start(prompt_);
  for (int i = 0; i < 5; i++) rig.step(s);
  const int32_t before = s.seat;
  rig.pool.free(s.seat);
  EXPECT_EQ(rig.pool.allocate(), before);
}

}  // namespace
}  // namespace deltaring::test
