// Seats are free, owned or cached: every transition, what each state allows, and what is left when room runs out.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "support/pool_pieces.h"
#include "support/pool_scribe.h"
#include "support/refusal.h"

namespace deltaring::test {
namespace {

constexpr auto kWrong = ErrorKind::invalid_argument;

// An owned seat with `tokens` made-up tokens behind a prefill. `log` receives them.
int32_t start(StatePool& pool, int64_t tokens, std::vector<uint32_t>& log, uint32_t salt = 0) {
  const int32_t seat = pool.allocate();
  EXPECT_TRUE(seat >= 0 && pool.reserve(seat, tokens));
  log.resize(static_cast<size_t>(tokens));
  std::iota(log.begin(), log.end(), salt * 1000 + 1);
  const int64_t fold_to = tokens - tokens % pool.options().ring.F;
  write_row(pool, seat, {}, log, fold_to);
  pool.commit(seat, fold_to, tokens);
  return seat;
}

// One step that keeps `row` and rejects one token more.
void step(StatePool& pool, int32_t seat, std::vector<uint32_t>& log, std::vector<uint32_t> row) {
  const int64_t kept = static_cast<int64_t>(row.size());
  EXPECT_TRUE(pool.reserve(seat, pool.cursor(seat).pos + kept + 1));
  const int64_t fold_to = plan_fold(pool.cursor(seat), pool.options().ring.F, pool.options().ring.policy);
  row.push_back(0xbad);
  write_row(pool, seat, log, row, fold_to);
  pool.commit(seat, fold_to, kept);
  log.insert(log.end(), row.begin(), row.end() - 1);
}

TEST(Seats, GoThroughEveryState) {
  StatePool pool(small_shape(), small_options());
  std::vector<uint32_t> log;
  EXPECT_EQ(pool.state_of(0), SeatState::free);
  const int32_t seat = start(pool, 21, log);
  EXPECT_EQ(pool.state_of(seat), SeatState::owned);
  const int32_t cached = pool.snapshot(seat, 21);
  EXPECT_EQ(pool.state_of(cached), SeatState::cached);
  EXPECT_EQ(pool.references(cached), 1);
  pool.share(cached);
  EXPECT_EQ(pool.references(cached), 2);
  const int32_t taken = pool.own(cached);
  ASSERT_TRUE(taken >= 0 && taken != cached && taken != seat);
  EXPECT_EQ(pool.state_of(taken), SeatState::owned);
  EXPECT_EQ(pool.references(cached), 1);
  const int32_t again = pool.snapshot(cached, 21);
  EXPECT_EQ(pool.state_of(again), SeatState::cached);
  pool.share(again), pool.release(again);
  EXPECT_EQ(pool.references(again), 1);
  pool.release(again);
  EXPECT_EQ(pool.state_of(again), SeatState::free);
  for (const int32_t at : {seat, cached, taken}) EXPECT_EQ(difference(pool, at, log, 4), "") << at;
  EXPECT_EQ(pool.own(cached), cached);
  EXPECT_EQ(pool.state_of(cached), SeatState::owned);
  for (const int32_t at : {seat, cached, taken}) pool.free(at);
  EXPECT_EQ(pool.free_seats(), 4);
  EXPECT_EQ(pool.free_pages(), pool.plan().pages);
  pool.check_invariants();
}

TEST(Seats, OwningTheLastReferenceCopiesNothing) {
  StatePool pool(small_shape(), small_options());
  std::vector<uint32_t> log;
  const int32_t seat = start(pool, 21, log), cached = pool.snapshot(seat, 21);
  const std::vector<int32_t> pages = pages_of(pool, cached, 21);
  Picture before = picture_of(pool);
  EXPECT_EQ(pool.own(cached), cached);
  const Picture after = picture_of(pool);
  EXPECT_EQ(after.bytes, before.bytes);
  EXPECT_EQ(pages_of(pool, cached, 21), pages);
  EXPECT_EQ(pool.free_seats(), 2);
  // It needs no room either.
  const int32_t full = pool.snapshot(seat, 21);
  ASSERT_GE(pool.allocate(), 0);
  EXPECT_EQ(pool.free_seats(), 0);
  EXPECT_EQ(pool.own(full), full);
}

TEST(Seats, CachedSeatsAreReadOnly) {
  StatePool pool(small_shape(), small_options());
  std::vector<uint32_t> log;
  const int32_t seat = start(pool, 21, log), cached = pool.snapshot(seat, 21);
  const Picture before = picture_of(pool);
  EXPECT_EQ(refusal([&] { pool.commit(cached, 16, 1); }), kWrong);
  EXPECT_EQ(refusal([&] { pool.commit(cached, 16, 0); }), kWrong);
  EXPECT_EQ(refusal([&] { pool.rewind(cached, 21); }), kWrong);
  EXPECT_EQ(refusal([&] { pool.rewind(cached, 17); }), kWrong);
  EXPECT_EQ(refusal([&] { pool.rewind(cached, 3); }), kWrong);
  EXPECT_EQ(refusal([&] { pool.reserve(cached, 1); }), kWrong);
  EXPECT_EQ(refusal([&] { pool.reserve(cached, 90); }), kWrong);
  EXPECT_EQ(refusal([&] { pool.free(cached); }), kWrong);
  EXPECT_EQ(picture_of(pool), before);
  EXPECT_EQ(pool.cursor(cached), (Cursor{16, 21}));
}

TEST(Seats, OwnedSeatsHaveNoReferences) {
  StatePool pool(small_shape(), small_options());
  std::vector<uint32_t> log;
  const int32_t seat = start(pool, 21, log);
  const Picture before = picture_of(pool);
  EXPECT_EQ(refusal([&] { pool.share(seat); }), kWrong);
  EXPECT_EQ(refusal([&] { pool.release(seat); }), kWrong);
  EXPECT_EQ(refusal([&] { pool.own(seat); }), kWrong);
  EXPECT_EQ(refusal([&] { pool.references(seat); }), kWrong);
  EXPECT_EQ(picture_of(pool), before);
}

TEST(Seats, NothingCanBeDoneWithASeatThatIsNotTaken) {
  StatePool pool(small_shape(), small_options());
  std::vector<uint32_t> log;
  const int32_t gone = start(pool, 21, log), there = start(pool, 5, log);
  pool.free(gone);
  const Picture before = picture_of(pool);
  using Limits = std::numeric_limits<int32_t>;
  for (const int32_t seat : {gone, 2, 3, 4, -1, -2, Limits::max(), Limits::min()}) {
    EXPECT_EQ(refusal([&] { pool.free(seat); }), kWrong) << seat;
    EXPECT_EQ(refusal([&] { pool.reserve(seat, 1); }), kWrong) << seat;
    EXPECT_EQ(refusal([&] { pool.commit(seat, 0, 0); }), kWrong) << seat;
    EXPECT_EQ(refusal([&] { pool.rewind(seat, 0); }), kWrong) << seat;
    EXPECT_EQ(refusal([&] { pool.copy(seat); }), kWrong) << seat;
    EXPECT_EQ(refusal([&] { pool.snapshot(seat, 0); }), kWrong) << seat;
    EXPECT_EQ(refusal([&] { pool.share(seat); }), kWrong) << seat;
    EXPECT_EQ(refusal([&] { pool.release(seat); }), kWrong) << seat;
    EXPECT_EQ(refusal([&] { pool.own(seat); }), kWrong) << seat;
    EXPECT_EQ(refusal([&] { pool.references(seat); }), kWrong) << seat;
    EXPECT_EQ(refusal([&] { pool.export_seat(seat); }), kWrong) << seat;
    EXPECT_EQ(refusal([&] { pool.cursor(seat); }), kWrong) << seat;
    if (seat < 0 || seat >= 4) {
      EXPECT_EQ(refusal([&] { pool.state_of(seat); }), kWrong) << seat;
    }
  }
  EXPECT_EQ(picture_of(pool), before);
  EXPECT_EQ(pool.cursor(there), (Cursor{0, 5}));
}

// Field D1, D3, D7: a state stored under a length that is not its own poisons every later request.
TEST(Seats, Field_D1_ASnapshotUnderAnotherLengthIsRefused) {
  StatePool pool(small_shape(), small_options());
  std::vector<uint32_t> log;
  const int32_t seat = start(pool, 21, log);
  const Picture before = picture_of(pool);
  for (const int64_t tokens : {0, 1, 16, 20, 22, 24, -1, -21}) {
    std::string what;
    EXPECT_EQ(refusal([&] { pool.snapshot(seat, tokens); }, &what), kWrong) << tokens;
    EXPECT_NE(what.find("21"), std::string::npos) << what;
    EXPECT_EQ(picture_of(pool), before) << tokens;
  }
  const int32_t cached = pool.snapshot(seat, 21);
  EXPECT_EQ(refusal([&] { pool.snapshot(cached, 20); }), kWrong);
  EXPECT_EQ(pool.cursor(cached).pos, 21);
}

// What one seat writes never shows in another, wherever the copy was made and whichever goes back.
TEST(Seats, CopiesDoNotShareWhatCanBeWritten) {
  for (int64_t tokens = 1; tokens <= 40; tokens++) {
    for (int64_t back = 0; back <= tokens % 8; back++) {
      StateOptions o = small_options();
      o.kv_tokens = 200;
      StatePool pool(small_shape(), o);
      std::vector<uint32_t> a;
      const int32_t first = start(pool, tokens, a);
      const int32_t second = pool.copy(first), cached = pool.snapshot(first, tokens);
      const std::vector<uint32_t> kept = a;
      std::vector<uint32_t> b = a;
      pool.rewind(first, tokens - back), a.resize(static_cast<size_t>(tokens - back));
      for (uint32_t i = 0; i < 4; i++) step(pool, first, a, {10 * i, 10 * i + 1, 10 * i + 2});
      for (uint32_t i = 0; i < 5; i++) step(pool, second, b, {777 + i, 888 + i});
      EXPECT_EQ(difference(pool, first, a, 4), "") << tokens << " back " << back;
      EXPECT_EQ(difference(pool, second, b, 4), "") << tokens << " back " << back;
      EXPECT_EQ(difference(pool, cached, kept, 4), "") << tokens << " back " << back;
      pool.free(first);
      fill(seat_pieces(pool, first), 0xee);
      EXPECT_EQ(difference(pool, second, b, 4), "") << tokens << " back " << back;
      EXPECT_EQ(difference(pool, cached, kept, 4), "") << tokens << " back " << back;
      pool.check_invariants();
    }
  }
}

// Whole pages in front of the checkpoint are final: copies hold the same ones, and free them once.
TEST(Seats, CopiesShareThePagesThatNoRewindReaches) {
  StatePool pool(small_shape(), small_options());
  std::vector<uint32_t> log;
  const int32_t seat = start(pool, 29, log);  // folded 24: three pages of eight and one that is written
  const int64_t before = pool.free_pages();
  const int32_t copy = pool.copy(seat);
  EXPECT_EQ(before - pool.free_pages(), 1);
  const std::vector<int32_t> mine = pages_of(pool, seat, 29), theirs = pages_of(pool, copy, 29);
  EXPECT_TRUE(std::equal(mine.begin(), mine.begin() + 3, theirs.begin()));
  EXPECT_NE(mine[3], theirs[3]);
  pool.free(seat);
  EXPECT_EQ(pool.free_pages(), pool.plan().pages - 4);
  EXPECT_EQ(difference(pool, copy, log, 4), "");
  // So one free page is enough for one copy more.
  const int32_t other = pool.allocate();
  ASSERT_TRUE(pool.reserve(other, (pool.free_pages() - 1) * 8));
  const int32_t last = pool.snapshot(copy, 29);
  ASSERT_GE(last, 0);
  EXPECT_EQ(pool.free_pages(), 0);
  EXPECT_EQ(pool.snapshot(copy, 29), -1);
  EXPECT_EQ(difference(pool, last, log, 4), "");
  pool.free(copy), pool.free(other), pool.release(last);
  EXPECT_EQ(pool.free_pages(), pool.plan().pages);
}

// Out of seats, then out of pages: -1, and all memory and every count as before.
TEST(Seats, ExhaustionLeavesEverythingAsItWas) {
  StatePool pool(small_shape(), small_options());
  std::vector<uint32_t> log;
  const int32_t seat = start(pool, 29, log), cached = pool.snapshot(seat, 29);
  pool.share(cached);
  const std::vector<std::byte> file = pool.export_seat(seat);
  const auto expect_nothing = [&](const char* what) {
    const Picture before = picture_of(pool);
    EXPECT_EQ(pool.copy(seat), -1) << what;
    EXPECT_EQ(pool.copy(cached), -1) << what;
    EXPECT_EQ(pool.snapshot(seat, 29), -1) << what;
    EXPECT_EQ(pool.own(cached), -1) << what;
    EXPECT_EQ(pool.import_seat(file), -1) << what;
    EXPECT_EQ(picture_of(pool), before) << what;
    EXPECT_EQ(pool.references(cached), 2) << what;
    pool.check_invariants();
  };
  const int32_t a = pool.allocate(), b = pool.allocate();
  EXPECT_EQ(pool.allocate(), -1);
  expect_nothing("no seat");
  pool.free(a);
  ASSERT_TRUE(pool.reserve(b, pool.free_pages() * 8));
  EXPECT_EQ(pool.free_pages(), 0);
  expect_nothing("no page");
  EXPECT_FALSE(pool.reserve(seat, 33));
  pool.free(b);
  EXPECT_EQ(difference(pool, pool.own(cached), log, 4), "");
  EXPECT_EQ(difference(pool, pool.import_seat(file), log, 4), "");
}

// A pool without attention layers has no pages to share, and positions have no end.
TEST(Seats, CopiesWithoutPages) {
  StateShape shape = small_shape();
  shape.kv_layers = 0;
  StatePool pool(shape, small_options());
  const int32_t seat = pool.allocate();
  write_state(pool, seat, 7);
  pool.commit(seat, int64_t{1} << 40, (int64_t{1} << 40) + 3);
  const int32_t copy = pool.copy(seat), cached = pool.snapshot(seat, (int64_t{1} << 40) + 3);
  EXPECT_TRUE(holds_state(pool, copy, 7) && holds_state(pool, cached, 7));
  EXPECT_EQ(pool.cursor(copy), pool.cursor(seat));
  pool.free(copy), pool.release(cached), pool.free(seat);
  pool.check_invariants();
}

}  // namespace
}  // namespace deltaring::test
