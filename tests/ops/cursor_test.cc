// The integers of the ring: plans, commits and the rules that bind T, F and R.
#include "ops/cursor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "base/error.h"

namespace deltaring {
namespace {

using testing::HasSubstr;

std::string refusal(const RingOptions& options) {
  try {
    check_ring(options);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_argument);
    return e.what();
  }
  return {};
}

TEST(Cursor, GridPlanIsTheLastGridPointThatIsAccepted) {
  for (int64_t F : {8, 16}) {
    for (int64_t folded = 0; folded <= 3 * F; folded += F) {
      for (int64_t pos = folded; pos <= folded + 3 * F; pos++) {
        const int64_t to = plan_fold({.folded = folded, .pos = pos}, F, FoldPolicy::grid);
        EXPECT_EQ(to % F, 0);
        EXPECT_LE(folded, to);
        EXPECT_LE(to, pos);
        EXPECT_LT(pos - to, F);
      }
    }
  }
}

TEST(Cursor, EveryPlanFoldsAllRecords) {
  for (int64_t folded = 0; folded < 20; folded++)
    for (int64_t pos = folded; pos < folded + 20; pos++)
      EXPECT_EQ(plan_fold({.folded = folded, .pos = pos}, 8, FoldPolicy::every), pos);
}

// The verify has stored the checkpoint at fold_to whatever is accepted, so folded follows even when nothing is.
TEST(Cursor, CommitMovesPosByWhatWasKeptAndFoldedToTheCheckpoint) {
  for (int64_t acc = 0; acc <= 16; acc++) {
    for (int64_t fold_to : {8, 16}) {
      const Cursor c = commit({.folded = 8, .pos = 21}, fold_to, acc);
      EXPECT_EQ(c, (Cursor{.folded = fold_to, .pos = 21 + acc})) << "acc " << acc;
    }
  }
}

// With the planned folds no window ever meets a live record, whatever is accepted; and one row less would not do.
TEST(Cursor, TheRingRuleIsTightUnderTheGrid) {
  for (int64_t F : {8, 16}) {
    for (int64_t T = 1; T <= 24; T++) {
      int64_t most = 0;
      std::vector<Cursor> reach{{}};
      for (size_t i = 0; i < reach.size(); i++) {
        const Cursor c = reach[i];
        most = std::max(most, c.pos - c.folded + T);
        for (int64_t acc = 0; acc <= T; acc++) {
          Cursor next = commit(c, plan_fold(c, F, FoldPolicy::grid), acc);
          const int64_t turns = next.folded / F * F;  // positions matter modulo F only
          next.folded -= turns, next.pos -= turns;
          if (std::find(reach.begin(), reach.end(), next) == reach.end()) reach.push_back(next);
        }
      }
      EXPECT_EQ(most, F - 1 + 2 * T) << "F " << F << " T " << T;
    }
  }
}

TEST(Cursor, DefaultRingIsTheSmallestThatServes) {
  for (FoldPolicy policy : {FoldPolicy::grid, FoldPolicy::every}) {
    for (int64_t F : {8, 16}) {
      for (int64_t T = 1; T <= 256; T++) {
        const int64_t R = default_ring_rows(T, F, policy);
        EXPECT_EQ(refusal({.T = T, .F = F, .R = R, .policy = policy}), "") << "T " << T << " F " << F << " R " << R;
        EXPECT_NE(refusal({.T = T, .F = F, .R = R / 2, .policy = policy}), "") << "T " << T << " F " << F << " R " << R;
      }
    }
  }
  EXPECT_EQ(default_ring_rows(4, 8, FoldPolicy::grid), 16);
  EXPECT_EQ(default_ring_rows(8, 16, FoldPolicy::grid), 32);
  EXPECT_EQ(default_ring_rows(16, 16, FoldPolicy::grid), 64);
}

// A rewind reaches folded and a cancelled window may have been written past pos: taps-1 inputs must survive below.
TEST(Cursor, ConvRingKeepsTheInputsBelowEveryRewind) {
  for (int64_t F : {8, 16}) {
    for (int64_t T = 1; T <= 64; T++) {
      for (int64_t taps = 1; taps <= 4; taps++) {
        const int64_t R = default_ring_rows(T, F, FoldPolicy::grid),
                      Rc = conv_ring_rows({.T = T, .F = F, .R = R}, taps);
        EXPECT_TRUE(std::has_single_bit(static_cast<uint64_t>(Rc)));
        EXPECT_GE(Rc, taps - 1 + F - 1 + T) << "F " << F << " T " << T << " taps " << taps;
      }
    }
  }
}

TEST(Cursor, CheckRingIsExactlyTheRules) {
  for (FoldPolicy policy : {FoldPolicy::grid, FoldPolicy::every}) {
    for (int64_t F : {8, 16}) {
      for (int64_t T = 1; T <= 40; T++) {
        for (int64_t R = -1; R <= 130; R++) {
          const bool legal = R >= 16 && std::has_single_bit(static_cast<uint64_t>(R)) && R >= T &&
                             (policy == FoldPolicy::every || R >= F - 1 + 2 * T);
          const std::string error = refusal({.T = T, .F = F, .R = R, .policy = policy});
          ASSERT_EQ(error.empty(), legal) << "T " << T << " F " << F << " R " << R;
          if (legal) continue;
          ASSERT_THAT(error, HasSubstr("--linear-replayssm-cache-len"));
          ASSERT_THAT(error, HasSubstr(std::to_string(R)));
          ASSERT_THAT(error, HasSubstr(std::to_string(default_ring_rows(T, F, policy)) + " works"));
        }
      }
    }
  }
}

// Rings as users ask for them: too short, no power of two, then two that serve when every step folds.
TEST(Cursor, Field_A11_ring_length) {
  const auto every = [](int64_t R, int64_t T) {
    return RingOptions{.T = T, .F = 8, .R = R, .policy = FoldPolicy::every};
  };
  EXPECT_THAT(refusal(every(16, 24)), HasSubstr("32 works"));
  EXPECT_THAT(refusal(every(8, 8)), HasSubstr("16 works"));
  EXPECT_THAT(refusal(every(12, 8)), HasSubstr("16 works"));
  EXPECT_EQ(refusal(every(16, 16)), "");
  EXPECT_EQ(refusal(every(32, 24)), "");
  EXPECT_THAT(refusal({.T = 16, .F = 8, .R = 16}), HasSubstr("64 works"));
  EXPECT_THAT(refusal({.T = 24, .F = 8, .R = 32}), HasSubstr("64 works"));
}

TEST(Cursor, WindowsAndGrainsOutOfRangeAreRefused) {
  for (int64_t T : {-1, 0, 257}) EXPECT_THAT(refusal({.T = T, .F = 8, .R = 1024}), HasSubstr("1 to 256")) << T;
  for (int64_t F : {-8, 0, 1, 4, 7, 12, 32}) EXPECT_THAT(refusal({.T = 4, .F = F, .R = 64}), HasSubstr("8 or 16")) << F;
}

}  // namespace
}  // namespace deltaring
