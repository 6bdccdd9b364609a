// The two ways a cursor moves, commit and rewind, and the side state that follows it.
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "support/counting_side.h"
#include "support/pool_pieces.h"
#include "support/refusal.h"

namespace deltaring::test {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();

// A seat with room for 40 tokens and the cursor {16, 21}.
int32_t seat_at_21(StatePool& pool) {
  const int32_t seat = pool.allocate();
  EXPECT_TRUE(pool.reserve(seat, 40));
  pool.commit(seat, 16, 16), pool.commit(seat, 16, 5);
  return seat;
}

TEST(Commit, MovesTheCursorAsTheContractSays) {
  StatePool pool(small_shape(), small_options());
  const int32_t seat = pool.allocate();
  ASSERT_TRUE(pool.reserve(seat, 40));
  struct Move {
    int64_t fold_to, acc;
    Cursor want;
  };
  for (const auto& [fold_to, acc, want] :
       {Move{0, 3, {0, 3}}, Move{0, 0, {0, 3}}, Move{0, 4, {0, 7}}, Move{0, 1, {0, 8}}, Move{8, 4, {8, 12}},
        Move{8, 4, {8, 16}}, Move{16, 0, {16, 16}}, Move{24, 10, {24, 26}}, Move{26, 0, {26, 26}}}) {
    pool.commit(seat, fold_to, acc);
    EXPECT_EQ(pool.cursor(seat), want) << fold_to << " " << acc;
  }
}

TEST(Commit, RefusesWhatNoVerifyCanHaveDone) {
  StatePool pool(small_shape(), small_options());
  const int32_t seat = seat_at_21(pool);
  const Picture before = picture_of(pool);
  struct Wrong {
    int64_t fold_to, acc;
  };
  for (const Wrong& wrong : {Wrong{16, -1}, Wrong{16, kLeast}, Wrong{15, 1}, Wrong{0, 1}, Wrong{-8, 1},
                             Wrong{kLeast, 1}, Wrong{23, 1}, Wrong{kMost, 1}, Wrong{16, 20}, Wrong{16, kMost}}) {
    EXPECT_EQ(refusal([&] { pool.commit(seat, wrong.fold_to, wrong.acc); }), ErrorKind::invalid_argument)
        << wrong.fold_to << " " << wrong.acc;
    EXPECT_EQ(picture_of(pool), before) << wrong.fold_to << " " << wrong.acc;
  }
  pool.commit(seat, 16, 19);
  EXPECT_EQ(pool.cursor(seat), (Cursor{16, 40})) << "all that was reserved";
}

TEST(Commit, UnderSnapshotTheStateIsPlain) {
  StateOptions o = small_options();
  o.rollback = StateRollback::snapshot;
  StatePool pool(small_shape(), o);
  const int32_t seat = pool.allocate();
  ASSERT_TRUE(pool.reserve(seat, 40));
  for (const int64_t fold_to : {int64_t{0}, int64_t{8}, kMost, kLeast}) {
    const int64_t pos = pool.cursor(seat).pos;
    pool.commit(seat, fold_to, 3);
    EXPECT_EQ(pool.cursor(seat), (Cursor{pos + 3, pos + 3}));
    pool.commit(seat, fold_to, 0);
    EXPECT_EQ(pool.cursor(seat), (Cursor{pos + 3, pos + 3}));
  }
  EXPECT_EQ(refusal([&] { pool.rewind(seat, 11); }), ErrorKind::out_of_reach);
  pool.rewind(seat, 12);
  EXPECT_EQ(pool.cursor(seat), (Cursor{12, 12}));
}

TEST(Rewind, ReachesBackOverTheRecordsAndNoFurther) {
  for (int64_t to = -3; to <= 30; to++) {
    StatePool pool(small_shape(), small_options());
    const int32_t seat = seat_at_21(pool);
    if (to >= 16 && to <= 21) {
      pool.rewind(seat, to);
      EXPECT_EQ(pool.cursor(seat), (Cursor{16, to}));
      continue;
    }
    const Picture before = picture_of(pool);
    std::string what;
    EXPECT_EQ(refusal([&] { pool.rewind(seat, to); }, &what), ErrorKind::out_of_reach) << to;
    EXPECT_NE(what.find("to " + std::to_string(to)), std::string::npos) << what;
    EXPECT_NE(what.find("[16, 21]"), std::string::npos) << what;
    EXPECT_EQ(picture_of(pool), before) << to;
  }
}

TEST(Rewind, OfTheWholeInt64) {
  StatePool pool(small_shape(), small_options());
  const int32_t seat = seat_at_21(pool);
  for (const int64_t to : {kLeast, kMost})
    EXPECT_EQ(refusal([&] { pool.rewind(seat, to); }), ErrorKind::out_of_reach) << to;
  EXPECT_EQ(pool.cursor(seat), (Cursor{16, 21}));
}

// Field A14: state beside the pool froze because one way to commit forgot it. Here the cursor itself tells it.
TEST(SideStates, Field_A14_FollowEveryMoveOfACursor) {
  StatePool pool(small_shape(), small_options());
  CountingSide one(4), two(4);
  pool.attach(one), pool.attach(two);
  const int32_t seat = seat_at_21(pool);
  const auto expect = [&](int32_t at, int64_t tokens) {
    for (const CountingSide* side : {&one, &two}) {
      EXPECT_FALSE(side->broken);
      EXPECT_EQ(side->tokens(at), tokens);
      EXPECT_EQ(side->cursor(at), pool.cursor(at));
    }
  };
  expect(seat, 21);
  pool.rewind(seat, 18), expect(seat, 18);
  pool.commit(seat, 16, 0), expect(seat, 18);
  pool.commit(seat, 24, 7), expect(seat, 25);
  const int32_t copy = pool.copy(seat), kept = pool.snapshot(seat, 25);
  ASSERT_TRUE(copy >= 0 && kept >= 0);
  expect(copy, 25), expect(kept, 25);
  ASSERT_TRUE(pool.reserve(copy, 30));
  pool.commit(copy, 24, 3), expect(copy, 28), expect(seat, 25);
  pool.share(kept);
  const int32_t owned = pool.own(kept);
  ASSERT_TRUE(owned >= 0 && owned != kept);
  expect(owned, 25);
  pool.rewind(owned, 24), expect(owned, 24), expect(kept, 25);
  const std::vector<std::byte> file = pool.export_seat(copy);
  pool.free(seat), pool.free(copy);
  const int32_t back = pool.import_seat(file);
  ASSERT_GE(back, 0);
  expect(back, 28);
  EXPECT_EQ(pool.own(kept), kept);
  expect(kept, 25);
  ASSERT_TRUE(pool.reserve(kept, 30));
  pool.commit(kept, 24, 2), expect(kept, 27);
  pool.free(kept);
  EXPECT_EQ(pool.allocate(), kept);
  expect(kept, 0);
}

TEST(SideStates, ARefusedMoveIsNoMove) {
  StatePool pool(small_shape(), small_options());
  CountingSide side(4);
  pool.attach(side);
  const int32_t seat = seat_at_21(pool), cached = pool.snapshot(seat, 21);
  const int64_t moves = side.moves;
  EXPECT_EQ(moves, 2) << "a copy is no move";
  EXPECT_THROW(pool.commit(seat, 16, 20), Error);
  EXPECT_THROW(pool.commit(seat, 16, -1), Error);
  EXPECT_THROW(pool.rewind(seat, 15), Error);
  EXPECT_THROW(pool.rewind(cached, 20), Error);
  EXPECT_THROW(pool.commit(cached, 16, 1), Error);
  EXPECT_EQ(side.moves, moves);
  EXPECT_EQ(side.tokens(seat), 21);
  EXPECT_EQ(side.tokens(cached), 21);
}

TEST(SideStates, ComeBeforeTheFirstSeatAndMayLeave) {
  StatePool pool(small_shape(), small_options());
  CountingSide early(4), late(4);
  pool.attach(early);
  const int32_t seat = seat_at_21(pool);
  EXPECT_EQ(refusal([&] { pool.attach(late); }), ErrorKind::invalid_argument);
  pool.commit(seat, 16, 1);
  EXPECT_EQ(late.moves, 0);
  pool.detach(early);
  pool.commit(seat, 16, 1);
  EXPECT_EQ(early.tokens(seat), 22);
  pool.free(seat);
  pool.attach(late);
  EXPECT_EQ(pool.allocate(), seat);
  EXPECT_EQ(late.clears, 1);
  EXPECT_EQ(early.clears, 1);
}

}  // namespace
}  // namespace deltaring::test
