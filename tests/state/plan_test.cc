#include "state/plan.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <regex>
#include <string>

#include "base/error.h"

namespace deltaring {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// The GDN part of a 27B model of the family.
StateShape shape_27b() {
  return {.gdn_layers = 48,
          .Hk = 16,
          .Hv = 48,
          .K = 128,
          .V = 128,
          .conv_channels = 10240,
          .taps = 4,
          .kv_layers = 16,
          .Hkv = 4,
          .D = 256};
}

StateOptions options(int64_t T, int64_t F = 8, FoldPolicy policy = FoldPolicy::grid) {
  return {.seats = 1,
          .kv_tokens = 1000,
          .page_rows = 64,
          .ring = {.T = T, .F = F, .R = default_ring_rows(T, F, policy), .policy = policy}};
}

std::string refusal(const StateOptions& o, const StateShape& shape = shape_27b()) {
  try {
    plan_state(shape, o);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_argument) << e.what();
    return e.what();
  }
  return {};
}

// The last "N works" of a message, -1 without one.
int64_t value_that_works(const std::string& message) {
  static const std::regex pattern("([0-9]+) works");
  int64_t value = -1;
  for (std::sregex_iterator it(message.begin(), message.end(), pattern), end; it != end; ++it)
    value = std::stoll((*it)[1]);
  return value;
}

TEST(StatePlan, PublishedCheckpointOf27B) {
  StateOptions o = options(4);
  o.checkpoint = DType::bf16;
  EXPECT_EQ(plan_state(shape_27b(), o).checkpoint_per_seat, 72 * kMiB);
  o.checkpoint = DType::f16;
  EXPECT_EQ(plan_state(shape_27b(), o).checkpoint_per_seat, 72 * kMiB);
  o.checkpoint = DType::f32;
  EXPECT_EQ(plan_state(shape_27b(), o).checkpoint_per_seat, 144 * kMiB);
}

// 128 requests with their spare row at T=8 and bf16 states: 72.6 GiB of snapshots, or a ring of 3.04 GiB that holds 16
// rows of corrected values in two halves. Ours holds R = 32 raw records in about the same.
TEST(StatePlan, PublishedComparisonOf27B) {
  const double rows = 129, gib = 1 << 30;
  StateOptions o = options(8);
  o.checkpoint = o.record = DType::bf16;
  const StatePlan ring = plan_state(shape_27b(), o);
  const StatePlan snapshots = plan_state_as(StateRollback::snapshot, shape_27b(), o);
  EXPECT_EQ(snapshots.snapshots_per_seat, 8 * 72 * kMiB);
  EXPECT_NEAR(rows * static_cast<double>(snapshots.snapshots_per_seat) / gib, 72.6, 0.05);
  EXPECT_EQ(o.ring.R, 32);
  EXPECT_EQ(ring.records_per_seat, int64_t{48} * 32 * 16768) << "a record is 16,768 bytes a layer";
  EXPECT_NEAR(rows * static_cast<double>(ring.records_per_seat) / gib, 3.04, 0.06);
}

TEST(StatePlan, SumsByHand) {
  const StateShape shape{.gdn_layers = 3,
                         .Hk = 2,
                         .Hv = 6,
                         .K = 16,
                         .V = 8,
                         .conv_channels = 100,
                         .taps = 4,
                         .kv_layers = 5,
                         .Hkv = 2,
                         .D = 24};
  const StateOptions o{.seats = 7,
                       .kv_tokens = 129,
                       .page_rows = 32,
                       .ring = {.T = 5, .F = 16, .R = 64},
                       .checkpoint = DType::f16,
                       .record = DType::bf16,
                       .kv = DType::bf16};
  const StatePlan plan = plan_state(shape, o);
  EXPECT_EQ(plan.checkpoint_per_seat, 3 * 6 * 8 * 16 * 2);
  EXPECT_EQ(plan.records_per_seat, 3 * 64 * ((2 * 16 + 6 * 8) * 2 + 6 * 2 * 4));
  EXPECT_EQ(plan.conv_rows, 64);
  EXPECT_EQ(plan.conv_per_seat, 3 * 64 * 100 * 4);
  EXPECT_EQ(plan.kv_per_page, 5 * 2 * 2 * 32 * 24 * 2);
  EXPECT_GE(plan.pages, 5) << "129 positions in pages of 32";
  EXPECT_EQ(plan.state_per_seat(), plan.checkpoint_per_seat + plan.records_per_seat + plan.conv_per_seat);
  const int64_t sum = 7 * plan.state_per_seat() + plan.pages * plan.kv_per_page;
  EXPECT_GE(plan.total, sum);
  EXPECT_LE(plan.total, sum + sum / 100);
}

TEST(StatePlan, SnapshotsByHand) {
  StateOptions o = options(5);
  o.seats = 3, o.ring.R = 17, o.rollback = StateRollback::snapshot, o.checkpoint = DType::bf16;
  const StatePlan plan = plan_state(shape_27b(), o);  // no ring, no rule of rings
  EXPECT_EQ(plan.checkpoint_per_seat, 72 * kMiB);
  EXPECT_EQ(plan.snapshots_per_seat, 5 * 72 * kMiB);
  EXPECT_EQ(plan.records_per_seat, 0);
  EXPECT_EQ(plan.conv_rows, 3 + 5);
  EXPECT_EQ(plan.conv_per_seat, int64_t{48} * 8 * 10240 * 4);
  EXPECT_EQ(plan.state_per_seat(), 6 * 72 * kMiB + plan.conv_per_seat);
  const int64_t sum = 3 * plan.state_per_seat() + plan.pages * plan.kv_per_page;
  EXPECT_GE(plan.total, sum);
  EXPECT_LE(plan.total, sum + 4096);
  o.ring.T = 1;
  EXPECT_EQ(plan_state(shape_27b(), o).snapshots_per_seat, 0) << "nothing is rejected in a window of one";
}

TEST(StatePlan, RollbacksDifferInTheStateAlone) {
  StateOptions o = options(8);
  o.checkpoint = DType::bf16;
  const StatePlan replay = plan_state(shape_27b(), o);
  const StatePlan snapshot = plan_state_as(StateRollback::snapshot, shape_27b(), o);
  EXPECT_EQ(plan_state_as(StateRollback::replay, shape_27b(), o).total, replay.total);
  EXPECT_EQ(snapshot.checkpoint_per_seat, replay.checkpoint_per_seat);
  EXPECT_EQ(snapshot.kv_per_page, replay.kv_per_page);
  EXPECT_EQ(snapshot.pages, replay.pages);
  EXPECT_EQ(snapshot.total - replay.total, snapshot.state_per_seat() - replay.state_per_seat());
  EXPECT_GT(snapshot.state_per_seat(), 3 * replay.state_per_seat());
}

TEST(StatePlan, GateChannelsAreRecorded) {
  StateShape shape = shape_27b();
  const StatePlan head = plan_state(shape, options(4));
  shape.G = shape.K;
  const StatePlan channel = plan_state(shape, options(4));
  EXPECT_EQ(channel.records_per_seat - head.records_per_seat, int64_t{48} * 16 * 48 * (128 - 1) * 4);
  EXPECT_EQ(channel.checkpoint_per_seat, head.checkpoint_per_seat);
}

TEST(StatePlan, ConvRowsReachBackFromEveryPositionOfTheRing) {
  for (int64_t T = 1; T <= 64; T++) {
    for (const int64_t taps : {1, 2, 4, 8}) {
      StateShape shape = shape_27b();
      shape.taps = taps;
      for (const FoldPolicy policy : {FoldPolicy::grid, FoldPolicy::every}) {
        const StateOptions o = options(T, 8, policy);
        const StatePlan plan = plan_state(shape, o);
        EXPECT_TRUE(std::has_single_bit(static_cast<uint64_t>(plan.conv_rows)));
        EXPECT_GE(plan.conv_rows, taps - 1 + T);
        if (policy == FoldPolicy::grid) {
          EXPECT_GE(plan.conv_rows, taps - 1 + 7 + T) << "rewind to the grid floor";
        }
      }
    }
  }
}

TEST(StatePlan, RingRulesNameTheFlagAndAValueThatWorks) {
  int refused = 0;
  for (const int64_t T : {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 33, 100, 256}) {
    for (const int64_t F : {8, 16}) {
      for (const FoldPolicy policy : {FoldPolicy::grid, FoldPolicy::every}) {
        for (const int64_t R : {-16, -1, 0, 1, 8, 15, 16, 17, 24, 31, 32, 33, 48, 64, 128, 256, 512, 1024}) {
          StateOptions o = options(T, F, policy);
          o.ring.R = R;
          const bool legal = R >= 16 && std::has_single_bit(static_cast<uint64_t>(R)) && R >= T &&
                             (policy == FoldPolicy::every || R >= F - 1 + 2 * T);
          const std::string message = refusal(o);
          EXPECT_EQ(message.empty(), legal) << "T " << T << " F " << F << " R " << R << ": " << message;
          if (legal || message.empty()) continue;
          refused++;
          EXPECT_NE(message.find("--linear-replayssm-cache-len"), std::string::npos) << message;
          EXPECT_NE(message.find(std::to_string(R)), std::string::npos) << message;
          o.ring.R = value_that_works(message);
          EXPECT_EQ(refusal(o), "") << message;
        }
      }
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(StatePlan, WindowAndGrainErrorsNameTheFlagAndAValueThatWorks) {
  for (const int64_t T : {int64_t{0}, int64_t{-1}, int64_t{257}, int64_t{4000000000000000000},
                          std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    StateOptions o = options(4);
    o.ring.T = T, o.ring.R = 1024;
    const std::string message = refusal(o);
    EXPECT_NE(message.find("--speculative-num-draft-tokens"), std::string::npos) << message;
    o.ring.T = value_that_works(message);
    EXPECT_EQ(refusal(o), "") << message;
  }
  for (const int64_t F : {0, -8, 1, 4, 12, 32}) {
    StateOptions o = options(4);
    o.ring.F = F;
    const std::string message = refusal(o);
    EXPECT_NE(message.find("--fold-grain"), std::string::npos) << message;
    o.ring.F = value_that_works(message);
    EXPECT_EQ(refusal(o), "") << message;
  }
}

TEST(StatePlan, RefusesSizesThatAreNotPositive) {
  for (const int64_t bad : {0, -1, -64}) {
    for (int64_t StateOptions::*const field :
         {&StateOptions::seats, &StateOptions::kv_tokens, &StateOptions::page_rows}) {
      StateOptions o = options(4);
      o.*field = bad;
      EXPECT_NE(refusal(o), "") << bad;
    }
  }
  for (int64_t StateShape::*const field :
       {&StateShape::gdn_layers, &StateShape::Hk, &StateShape::Hv, &StateShape::K, &StateShape::V, &StateShape::G,
        &StateShape::conv_channels, &StateShape::taps, &StateShape::kv_layers, &StateShape::Hkv, &StateShape::D}) {
    StateShape shape = shape_27b();
    shape.*field = -1;
    EXPECT_NE(refusal(options(4), shape), "") << "a negative extent gives a plan";
  }
  StateOptions o = options(4);
  o.page_rows = 48;
  EXPECT_NE(refusal(o), "") << "a page of 48 positions is no power of two";
}

// A plan that does not fit into 64 bits must not come out small.
TEST(StatePlan, NeverWrapsAround) {
  const auto planned = [](const StateOptions& o, const StateShape& shape) {
    try {
      return static_cast<double>(plan_state(shape, o).total);
    } catch (const Error&) {
      return std::numeric_limits<double>::infinity();
    }
  };
  const double modest = planned(options(4), shape_27b());
  for (int bit = 20; bit < 63; bit++) {
    const int64_t huge = int64_t{1} << bit;
    StateOptions rows = options(4), seats = options(4), tokens = options(4), page = options(4);
    rows.ring.R = huge, seats.seats = huge, tokens.kv_tokens = huge, page.page_rows = huge;
    EXPECT_GT(planned(rows, shape_27b()), modest) << "R 2^" << bit;
    EXPECT_GT(planned(seats, shape_27b()), modest) << "seats 2^" << bit;
    EXPECT_GT(planned(tokens, shape_27b()), modest) << "tokens 2^" << bit;
    EXPECT_GT(planned(page, shape_27b()), modest) << "page 2^" << bit;
  }
}

TEST(StatePlan, PagesHoldTheTokensForAnySplitOverSeats) {
  for (const int64_t seats : {1, 2, 5, 16}) {
    for (const int64_t tokens : {1, 15, 16, 17, 100, 1000}) {
      StateOptions o = options(4);
      o.seats = seats, o.kv_tokens = tokens, o.page_rows = 16;
      // The worst split: one position too many for its page in all seats but one.
      const int64_t small = std::min(seats - 1, tokens), rest = tokens - small;
      EXPECT_GE(plan_state(shape_27b(), o).pages, small + (rest + 15) / 16) << seats << " " << tokens;
    }
  }
}

}  // namespace
}  // namespace deltaring
