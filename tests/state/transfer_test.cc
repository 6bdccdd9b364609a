// Seats that leave a pool and enter another.
#include <gtest/gtest.h>

#include <random>

#include "support/pool_pieces.h"
#include "support/pool_scribe.h"
#include "support/seat_file.h"
#include "support/tiny_layer.h"

namespace deltaring::test {
namespace {

// An owned seat with the tokens of `log`: a prefill of the first `prefilled`, then steps of three in windows of four
// whose last token is rejected. `noise` is what rejected tokens hold.
int32_t decode(StatePool& pool, std::span<const uint32_t> log, int64_t prefilled, uint32_t noise = 1) {
  const int32_t seat = pool.allocate();
  const int64_t tokens = static_cast<int64_t>(log.size()), F = pool.options().ring.F;
  EXPECT_TRUE(seat >= 0 && pool.reserve(seat, tokens + 4));
  write_row(pool, seat, {}, log.first(static_cast<size_t>(prefilled)), prefilled - prefilled % F);
  pool.commit(seat, prefilled - prefilled % F, prefilled);
  while (pool.cursor(seat).pos < tokens) {
    const Cursor c = pool.cursor(seat);
    const int64_t kept = std::min<int64_t>(3, tokens - c.pos), fold_to = plan_fold(c, F, FoldPolicy::grid);
    std::vector<uint32_t> row(log.begin() + c.pos, log.begin() + c.pos + kept);
    row.push_back(noise++);
    write_row(pool, seat, log.first(static_cast<size_t>(c.pos)), row, fold_to);
    pool.commit(seat, fold_to, kept);
  }
  return seat;
}

std::vector<uint32_t> tokens(size_t count) {
  std::mt19937 rng(static_cast<uint32_t>(count));
  std::vector<uint32_t> log(count);
  for (uint32_t& token : log) token = static_cast<uint32_t>(rng());
  return log;
}

TEST(Transfer, RoundTripIntoPoolsOfAnyGeometry) {
  for (int64_t count = 1; count <= 40; count++) {
    const std::vector<uint32_t> log = tokens(static_cast<size_t>(count));
    StatePool from(small_shape(), small_options());
    const int32_t seat = decode(from, log, std::min<int64_t>(count, 1 + count % 11));
    const SeatFile file = from.export_seat(seat);
    EXPECT_TRUE(is_signed(file));
    for (const int64_t R : {16, 32, 128}) {
      for (const int64_t page_rows : {1, 8, 64}) {
        StateOptions o = small_options();
        o.seats = 1 + R / 16, o.page_rows = page_rows, o.ring.R = R, o.kv_tokens = 64;
        StatePool to(small_shape(), o);
        fill(all_pieces(to), 0xff);
        for (int32_t i = 0; i + 2 < o.seats; i++) ASSERT_EQ(to.allocate(), i);
        const int32_t there = to.import_seat(file);
        ASSERT_GE(there, 0);
        EXPECT_EQ(to.state_of(there), SeatState::owned);
        EXPECT_EQ(to.cursor(there), from.cursor(seat));
        EXPECT_EQ(difference(to, there, log, 4), "") << count << " R " << R << " pages of " << page_rows;
        EXPECT_EQ(to.export_seat(there), file);
        to.check_invariants();
      }
    }
  }
}

TEST(Transfer, CachedSeatsGiveTheSameBytes) {
  StatePool pool(small_shape(), small_options());
  const std::vector<uint32_t> log = tokens(21);
  const int32_t seat = decode(pool, log, 10), copy = pool.copy(seat), cached = pool.snapshot(seat, 21);
  const SeatFile file = pool.export_seat(seat);
  EXPECT_EQ(pool.export_seat(copy), file);
  EXPECT_EQ(pool.export_seat(cached), file);
  EXPECT_EQ(pool.export_seat(seat), file);
}

// Other bytes in every slot that no step and no rewind can read.
void scramble_dead_slots(const StatePool& pool, int32_t seat) {
  const Cursor c = pool.cursor(seat);
  const int64_t R = pool.options().ring.R, Rc = pool.plan().conv_rows;
  for (int64_t p = c.pos; p < c.folded + R; p++) write_token(pool, seat, p, 0xdead, {.conv = false, .kv = false});
  const int64_t oldest = std::max<int64_t>(0, c.folded - (pool.shape().taps - 1));
  for (int64_t p = c.pos; p < oldest + Rc; p++) write_token(pool, seat, p, 0xdead, {.records = false, .kv = false});
}

// What no step can read is not in the file: dead ring slots, rejected tokens, other seats, page numbers.
TEST(Transfer, BytesAreAFunctionOfTheLiveStateAlone) {
  for (int64_t count = 4; count <= 40; count += 3) {
    const std::vector<uint32_t> log = tokens(static_cast<size_t>(count));
    const int64_t prefilled = 1 + count % 3;
    StatePool clean(small_shape(), small_options());
    const SeatFile file = clean.export_seat(decode(clean, log, prefilled));
    StatePool dirty(small_shape(), small_options());
    fill(all_pieces(dirty), 0xff);
    const std::vector<uint32_t> others = tokens(30);
    const int32_t gone = decode(dirty, others, 9), other = decode(dirty, others, 5);
    dirty.free(gone);
    ASSERT_TRUE(dirty.reserve(other, 41));
    const int32_t seat = decode(dirty, log, prefilled, 0xffff0000u);
    EXPECT_NE(pages_of(dirty, seat, 1), pages_of(clean, 0, 1));
    EXPECT_EQ(dirty.export_seat(seat), file) << count;
    scramble_dead_slots(dirty, seat);
    EXPECT_EQ(difference(dirty, seat, log, 4), "");
    EXPECT_EQ(dirty.export_seat(seat), file) << count;
    // A rewind takes back what came behind; the window that it undoes has overwritten dead slots alone.
    const Cursor c = dirty.cursor(seat);
    ASSERT_TRUE(dirty.reserve(seat, c.pos + 2));
    if (c.pos - c.folded > 8) continue;
    write_row(dirty, seat, log, std::vector<uint32_t>{5, 6}, c.folded);
    dirty.commit(seat, c.folded, 2);
    EXPECT_NE(dirty.export_seat(seat), file);
    dirty.rewind(seat, c.pos);
    EXPECT_EQ(dirty.export_seat(seat), file) << count;
  }
}

// Field D13: a saved prefix was rewritten by the steps of the request that had saved it.
TEST(Transfer, Field_D13_WhatWasSavedStaysAsItIs) {
  TinyLayer layer({.checkpoint = DType::bf16});
  StatePool pool(layer.shape(), layer.pool_options(4, 4, 4));
  const int32_t seat = pool.allocate();
  ASSERT_TRUE(pool.reserve(seat, 48));
  ASSERT_EQ(layer.prefill(pool, seat, 0, 14), "");
  const SeatFile file = pool.export_seat(seat), saved = file;
  const int32_t cached = pool.snapshot(seat, 14);
  pool.share(cached);
  const int32_t other = pool.own(cached);
  ASSERT_TRUE(pool.reserve(other, 48));
  for (int step = 0; step < 100; step++) {
    const Cursor c = pool.cursor(seat);
    if (c.pos < 40 && pool.cursor(other).pos < 40) {
      ASSERT_EQ(layer.step(pool, {{.seat = seat, .story = 0, .length = 4, .keep = step % 2, .noise = Noise::nan},
                                  {.seat = other, .story = 16, .length = 2, .keep = step % 3 == 0}}),
                "");
    }
    if (step % 5 == 0) pool.rewind(seat, std::max(c.folded, c.pos - 2));
    ASSERT_EQ(pool.export_seat(cached), saved) << step;
    ASSERT_EQ(file, saved);
  }
  EXPECT_EQ(pool.export_seat(cached), saved);
}

// The seat goes on in the other pool with the bits of the first, wherever it left.
TEST(Transfer, AnImportedSeatContinuesBitForBit) {
  for (const bool kda : {false, true}) {
    for (const DType checkpoint : {DType::f32, DType::bf16, DType::f16}) {
      TinyLayer layer({.checkpoint = checkpoint, .record = checkpoint, .kda = kda, .F = kda ? 16 : 8});
      for (int32_t left = 1; left <= 28; left += 3) {
        StatePool from(layer.shape(), layer.pool_options(2, 3, 8)), to(layer.shape(), layer.pool_options(5, 7, 2, 64));
        const int32_t seat = from.allocate();
        ASSERT_TRUE(from.reserve(seat, 40));
        ASSERT_EQ(layer.prefill(from, seat, 16, (left + 1) / 2), "");
        while (from.cursor(seat).pos < left) {
          ASSERT_EQ(layer.step(from, {{.seat = seat, .story = 16, .length = 3, .keep = 1, .noise = Noise::nan}}), "");
        }
        fill(all_pieces(to), 0xff);
        ASSERT_GE(to.allocate(), 0);
        const int32_t there = to.import_seat(from.export_seat(seat));
        ASSERT_TRUE(there >= 0 && to.reserve(there, 48));
        if (left % 2) to.rewind(there, to.cursor(there).folded);
        while (to.cursor(there).pos < 40) {
          ASSERT_EQ(layer.step(to, {{.seat = there, .story = 16, .length = 7, .keep = 5, .noise = Noise::huge}}), "");
        }
        // And what was computed there comes home, as far as the shorter ring reaches.
        const Cursor c = to.cursor(there);
        if (c.pos - c.folded + 3 > from.options().ring.R) continue;
        const int32_t home = from.import_seat(to.export_seat(there));
        ASSERT_TRUE(home >= 0 && from.reserve(home, 48));
        ASSERT_EQ(layer.step(from, {{.seat = home, .story = 16, .length = 3, .keep = 3}}), "");
      }
    }
  }
}

// A state without records is plain, and pools of other rollbacks and policies can share it when none has a grid.
TEST(Transfer, PlainStatesMoveBetweenPoolsWithoutAGrid) {
  StateOptions every = small_options(), snapshot = small_options();
  every.ring.policy = FoldPolicy::every, snapshot.rollback = StateRollback::snapshot;
  StatePool a(small_shape(), every), b(small_shape(), snapshot);
  const std::vector<uint32_t> log = tokens(13);
  const int32_t seat = a.allocate();
  ASSERT_TRUE(a.reserve(seat, 13));
  write_row(a, seat, {}, log, 13);
  a.commit(seat, 13, 13);
  const SeatFile file = a.export_seat(seat);
  const int32_t there = b.import_seat(file);
  ASSERT_GE(there, 0);
  EXPECT_EQ(difference(b, there, log, 4), "");
  EXPECT_EQ(b.export_seat(there), file);
}

}  // namespace
}  // namespace deltaring::test
