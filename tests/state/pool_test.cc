#include "state/pool.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>

#include "base/error.h"
#include "support/pool_pieces.h"

namespace deltaring::test {
namespace {

int64_t pages_for(const StatePool& pool, int64_t tokens) {
  return (tokens + pool.options().page_rows - 1) / pool.options().page_rows;
}

TEST(StatePool, ViewsHaveTheShapesOfTheContract) {
  const StatePool pool(small_shape(), small_options());
  const GdnState state = pool.gdn(2);
  EXPECT_EQ(state.checkpoint.shape, (std::array<int64_t, 4>{4, 3, 6, 10}));
  EXPECT_EQ(state.record_k.shape, (std::array<int64_t, 4>{4, 1, 16, 10}));
  EXPECT_EQ(state.record_v.shape, (std::array<int64_t, 4>{4, 3, 16, 6}));
  EXPECT_EQ(state.record_g.shape, (std::array<int64_t, 4>{4, 3, 16, 1}));
  EXPECT_EQ(state.record_beta.shape, (std::array<int64_t, 3>{4, 3, 16}));
  EXPECT_EQ(pool.conv_ring(2).shape, (std::array<int64_t, 3>{4, pool.plan().conv_rows, 7}));
  EXPECT_EQ(pool.kv(1).k.shape, (std::array<int64_t, 4>{pool.plan().pages, 2, 8, 5}));
  EXPECT_EQ(pool.kv(1).v.shape, pool.kv(1).k.shape);
  EXPECT_EQ(state.checkpoint.dtype, DType::bf16);
  EXPECT_EQ(state.record_k.dtype, DType::f32);
  EXPECT_EQ(state.record_g.dtype, DType::f32);
  EXPECT_EQ(pool.conv_ring(0).dtype, DType::f32);
  EXPECT_EQ(pool.kv(0).k.dtype, DType::f16);
  EXPECT_EQ(state.checkpoint.stride[3], 1) << "K is contiguous";
  EXPECT_FALSE(pool.snapshots(0)) << "replay keeps none";
  StateShape kda = small_shape();
  kda.G = kda.K;
  EXPECT_EQ(StatePool(kda, small_options()).gdn(0).record_g.shape, (std::array<int64_t, 4>{4, 3, 16, 10}));
}

TEST(StatePool, SnapshotsTakeThePlaceOfRecords) {
  StateOptions o = small_options();
  o.rollback = StateRollback::snapshot, o.ring.R = 0;
  const StatePool pool(small_shape(), o);
  EXPECT_EQ(pool.snapshots(2).shape, (std::array<int64_t, 5>{4, 4, 3, 6, 10}));
  EXPECT_EQ(pool.snapshots(2).dtype, DType::bf16);
  EXPECT_EQ(pool.gdn(0).checkpoint.shape, (std::array<int64_t, 4>{4, 3, 6, 10}));
  EXPECT_EQ(pool.conv_ring(0).shape, (std::array<int64_t, 3>{4, 3 + 4, 7}));
  o.ring.T = 1;
  EXPECT_FALSE(StatePool(small_shape(), o).snapshots(0)) << "one token a window is never undone";
}

// Pools of both kinds of rollback.
std::vector<StateOptions> both_kinds() {
  StateOptions snapshot = small_options();
  snapshot.rollback = StateRollback::snapshot;
  return {small_options(), snapshot};
}

// Every piece gets a byte of its own, in several rounds of 255; none may lose it to another.
TEST(StatePool, NoPieceOverlapsAnother) {
  for (const StateOptions& o : both_kinds()) {
    const StatePool pool(small_shape(), o);
    const Pieces pieces = all_pieces(pool);
    ASSERT_GT(pieces.size(), 90u);
    for (const int step : {1, 7}) {
      int value = 0;
      for (const auto& [name, bytes] : pieces) fill(bytes, value = (value + step) % 251);
      value = 0;
      for (const auto& [name, bytes] : pieces) EXPECT_TRUE(holds(bytes, value = (value + step) % 251)) << name;
    }
  }
}

TEST(StatePool, AllocatesWhatWasPlanned) {
  for (StateOptions o : both_kinds()) {
    for (o.seats = 1; o.seats <= 33; o.seats *= 4) {
      const StatePool pool(small_shape(), o);
      char *first = nullptr, *last = nullptr;
      int64_t bytes_in_use = 0;
      for (const auto& [name, piece] : all_pieces(pool)) {
        piece([&](char* at, size_t bytes) {
          first = first ? std::min(first, at) : at, last = std::max(last, at + bytes);
          bytes_in_use += static_cast<int64_t>(bytes);
        });
      }
      const StatePlan& plan = pool.plan();
      EXPECT_EQ(bytes_in_use, o.seats * plan.state_per_seat() + plan.pages * plan.kv_per_page);
      const int64_t padding = 8 * static_cast<int64_t>(Arena::kAlignment);  // eight kinds of pieces
      EXPECT_LE(last - first, plan.total);
      EXPECT_GE(last - first, plan.total - 2 * padding);
    }
  }
}

TEST(StatePool, PiecesOfTheArenaAreAligned) {
  const StatePool pool(small_shape(), small_options());
  const GdnState state = pool.gdn(0);
  for (const void* start : {state.checkpoint.data, state.record_k.data, state.record_v.data, state.record_g.data,
                            state.record_beta.data, pool.conv_ring(0).data, pool.kv(0).k.data}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(start) % Arena::kAlignment, 0u);
  }
}

TEST(StatePool, SeatsComeCleanAndLeaveTheOthersAlone) {
  StatePool pool(small_shape(), small_options());
  for (int64_t i = 0; i < 4; i++) ASSERT_GE(pool.allocate(), 0);
  fill(all_pieces(pool), 0xff);
  for (int32_t seat = 0; seat < 4; seat++) {
    ASSERT_TRUE(pool.reserve(seat, 11));
    pool.commit(seat, 8, 11);
  }
  ASSERT_TRUE(pool.reserve(2, 30));
  pool.free(2);
  ASSERT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.cursor(2), (Cursor{.folded = 0, .pos = 0}));
  for (const auto& [name, bytes] : seat_pieces(pool, 2)) {
    if (name.starts_with("checkpoint")) {
      EXPECT_TRUE(holds(bytes, 0)) << name;
    }
  }
  for (const int32_t other : {0, 1, 3}) {
    EXPECT_EQ(pool.cursor(other), (Cursor{.folded = 8, .pos = 11}));
    for (const auto& [name, bytes] : seat_pieces(pool, other)) EXPECT_TRUE(holds(bytes, 0xff)) << name;
  }
}

TEST(StatePool, SeatsRunOutAndComeBack) {
  StatePool pool(small_shape(), small_options());
  std::set<int32_t> seats;
  for (int64_t left = 4; left > 0; left--) {
    EXPECT_EQ(pool.free_seats(), left);
    seats.insert(pool.allocate());
  }
  EXPECT_EQ(seats, (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(pool.allocate(), -1);
  EXPECT_EQ(pool.allocate(), -1);
  EXPECT_EQ(pool.free_seats(), 0);
  pool.free(1);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), -1);
}

TEST(StatePool, RefusesToFreeWhatIsNotTaken) {
  StatePool pool(small_shape(), small_options());
  const int32_t seat = pool.allocate();
  ASSERT_TRUE(pool.reserve(seat, 20));
  for (const int32_t wrong : {-1, -2, 3, 4, 1000000}) EXPECT_THROW(pool.free(wrong), Error) << wrong;
  pool.free(seat);
  EXPECT_THROW(pool.free(seat), Error) << "twice";
  EXPECT_EQ(pool.free_seats(), 4);
  EXPECT_EQ(pool.free_pages(), pool.plan().pages);
}

TEST(StatePool, ReserveIsAllOrNothing) {
  StatePool pool(small_shape(), small_options());
  const int32_t a = pool.allocate(), b = pool.allocate();
  const int64_t pages = pool.plan().pages;
  EXPECT_TRUE(pool.reserve(a, 0));
  EXPECT_EQ(pool.free_pages(), pages);
  EXPECT_TRUE(pool.reserve(a, 1));
  EXPECT_TRUE(pool.reserve(a, 8)) << "the same page";
  EXPECT_EQ(pool.free_pages(), pages - 1);
  EXPECT_TRUE(pool.reserve(a, 9));
  const std::vector<int32_t> before = pages_of(pool, a, 16);
  EXPECT_FALSE(pool.reserve(a, pages * 8 + 1));
  EXPECT_EQ(pool.free_pages(), pages - 2);
  EXPECT_EQ(pages_of(pool, a, 16), before);
  EXPECT_TRUE(pool.reserve(a, 3)) << "less than there is";
  EXPECT_EQ(pool.free_pages(), pages - 2);
  EXPECT_FALSE(pool.reserve(b, (pages - 1) * 8));
  EXPECT_TRUE(pool.reserve(b, (pages - 2) * 8));
  EXPECT_EQ(pool.free_pages(), 0);
  EXPECT_EQ(pages_of(pool, a, 16), before);
  EXPECT_FALSE(pool.reserve(a, 17));
  EXPECT_FALSE(pool.reserve(a, std::numeric_limits<int64_t>::max())) << "no number of tokens is too large to refuse";
  pool.free(b);
  EXPECT_TRUE(pool.reserve(a, 17));
}

TEST(StatePool, TokensOfTheContextFitForAnySplit) {
  std::mt19937_64 rng(3);
  StatePool pool(small_shape(), small_options());
  for (int round = 0; round < 200; round++) {
    int64_t left = 100;
    for (int32_t i = 0; i < 4; i++) {
      const int32_t seat = pool.allocate();
      const int64_t tokens = i == 3 ? left : static_cast<int64_t>(rng() % static_cast<uint64_t>(left + 1));
      EXPECT_TRUE(pool.reserve(seat, tokens)) << tokens << " of " << left;
      left -= tokens;
    }
    for (int32_t seat = 0; seat < 4; seat++) pool.free(seat);
  }
}

// Random requests come, grow and go; every page is always with one seat or free, and grown seats keep theirs.
TEST(StatePool, EveryPageIsInOnePlace) {
  std::mt19937_64 rng(1);
  const auto draw = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  StatePool pool(small_shape(), small_options());
  std::map<int32_t, std::vector<int32_t>> owned;
  int refused = 0;
  for (int step = 0; step < 20000; step++) {
    const int64_t action = draw(10);
    if (action < 2) {
      const int32_t seat = pool.allocate();
      ASSERT_EQ(seat < 0, owned.size() == 4u);
      if (seat >= 0) {
        ASSERT_TRUE(owned.try_emplace(seat).second) << "seat " << seat << " given twice";
      }
    } else if (!owned.empty()) {
      const auto it = std::next(owned.begin(), draw(static_cast<int64_t>(owned.size())));
      auto& [seat, pages] = *it;
      if (action == 2) {
        pool.free(seat);
        owned.erase(it);
      } else {
        const int64_t tokens = draw(101), want = std::max<int64_t>(pages_for(pool, tokens), pages.size());
        const bool fits = want - static_cast<int64_t>(pages.size()) <= pool.free_pages();
        ASSERT_EQ(pool.reserve(seat, tokens), fits);
        refused += !fits;
        if (fits) {
          const std::vector<int32_t> now = pages_of(pool, seat, want * 8);
          ASSERT_TRUE(std::equal(pages.begin(), pages.end(), now.begin())) << "a page moved";
          pages = now;
        }
      }
    }
    std::set<int32_t> seen;
    for (const auto& [seat, pages] : owned) {
      for (const int32_t page : pages) {
        ASSERT_TRUE(page >= 0 && page < pool.plan().pages);
        ASSERT_TRUE(seen.insert(page).second) << "page " << page << " is in two places";
      }
      ASSERT_EQ(pages_of(pool, seat, static_cast<int64_t>(pages.size()) * 8), pages);
    }
    ASSERT_EQ(static_cast<int64_t>(seen.size()) + pool.free_pages(), pool.plan().pages);
    ASSERT_EQ(static_cast<int64_t>(owned.size()) + pool.free_seats(), 4);
  }
  EXPECT_GT(refused, 100) << "the pages never ran out: the test is too mild";
}

TEST(StatePool, GrainIsTheGridsOnly) {
  StateOptions o = small_options();
  EXPECT_EQ(StatePool(small_shape(), o).grain(), 8);
  o.ring = {.T = 4, .F = 16, .R = 32};
  EXPECT_EQ(StatePool(small_shape(), o).grain(), 16);
  o.ring.policy = FoldPolicy::every;
  EXPECT_EQ(StatePool(small_shape(), o).grain(), 0);
}

TEST(StatePool, SaysSoWhenMemoryIsMissing) {
  StateOptions o = small_options();
  o.kv_tokens = int64_t{1} << 50;
  try {
    const StatePool pool(small_shape(), o);
    ADD_FAILURE() << "2^50 positions were granted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::out_of_memory) << e.what();
  }
}

// A model without GDN layers, or without attention, has no such state.
TEST(StatePool, EitherKindOfLayerMayBeMissing) {
  StateShape attention_only = small_shape(), gdn_only = small_shape();
  attention_only.gdn_layers = 0, gdn_only.kv_layers = 0;
  for (const StateShape& shape : {attention_only, gdn_only}) {
    StatePool pool(shape, small_options());
    EXPECT_EQ(pool.allocate(), 0);
    EXPECT_TRUE(pool.reserve(0, 100));
    pool.free(0);
    EXPECT_EQ(pool.free_pages(), pool.plan().pages);
  }
}

}  // namespace
}  // namespace deltaring::test
