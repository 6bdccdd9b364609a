// Plain states from checkpoints and records.
#include "state/materialise.h"

#include <gtest/gtest.h>

#include <array>

#include "support/counting_side.h"
#include "support/pool_pieces.h"
#include "support/refusal.h"
#include "support/tiny_layer.h"

namespace deltaring::test {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

// A seat with `records` of them behind a checkpoint at 8: T = 16 lets up to F - 1 + T pile up.
int32_t seat_with_records(TinyLayer& layer, StatePool& pool, int32_t records, int story = 16) {
  const int32_t seat = pool.allocate();
  EXPECT_TRUE(pool.reserve(seat, 48));
  EXPECT_EQ(layer.prefill(pool, seat, story, 8 + std::min(records, 7)), "");
  if (records > 7) {
    const int32_t more = records - 7;
    EXPECT_EQ(layer.step(pool, {{.seat = seat, .story = story, .length = more, .keep = more}}), "");
  }
  EXPECT_EQ(pool.cursor(seat), (Cursor{8, 8 + records}));
  return seat;
}

// S of value head j behind the live records, in double, from the math of ops/gdn.h; and the largest size on the way.
struct Oracle {
  std::vector<double> S;  // [V, K]
  double largest = 0;
};

Oracle replay(const StatePool& pool, int32_t seat, int64_t j) {
  const GdnState s = pool.gdn(0);
  const auto [seats, Hv, V, K] = s.checkpoint.shape;
  const Cursor c = pool.cursor(seat);
  const int64_t R = pool.options().ring.R, G = pool.shape().G, head = j / (Hv / pool.shape().Hk);
  Oracle o;
  for (int64_t i = 0; i < V * K; i++) o.S.push_back(load_as_float(s.checkpoint[seat][j].data, s.checkpoint.dtype, i));
  for (int64_t p = c.folded; p < c.pos; p++) {
    std::vector<double> k(K);
    double squares = 1e-6;
    for (int64_t i = 0; i < K; i++) {
      k[i] = load_as_float(s.record_k[seat][head][p % R].data, s.record_k.dtype, i);
      squares += k[i] * k[i];
    }
    for (int64_t v = 0; v < V; v++) {
      double* row = &o.S[v * K];
      double seen = 0;
      for (int64_t i = 0; i < K; i++) {
        row[i] *= std::exp(double{*s.record_g.f32(seat, j, p % R, G == 1 ? 0 : i)});
        seen += row[i] * k[i] / std::sqrt(squares);
      }
      const double value = load_as_float(s.record_v[seat][j][p % R].data, s.record_v.dtype, v);
      const double d = *s.record_beta.f32(seat, j, p % R) * (value - seen);
      for (int64_t i = 0; i < K; i++) {
        row[i] += d * k[i] / std::sqrt(squares);
        o.largest = std::max({o.largest, std::fabs(row[i]), std::fabs(d)});
      }
    }
    if (pool.grain() > 0 && (p + 1) % pool.grain() == 0) {
      for (double& x : o.S) x = round_to(s.checkpoint.dtype, static_cast<float>(x));
    }
  }
  return o;
}

double roundoff(DType t) { return t == DType::f32 ? 0x1p-24 : t == DType::bf16 ? 0x1p-8 : 0x1p-11; }

TEST(Materialise, IsTheStateOfTheFloat64Oracle) {
  for (const bool kda : {false, true}) {
    for (const DType checkpoint : kDTypes) {
      TinyLayer layer({.checkpoint = checkpoint, .kda = kda});
      for (int32_t records = 1; records <= 23; records++) {
        StatePool pool(layer.shape(), layer.pool_options(1, 16));
        const int32_t seat = seat_with_records(layer, pool, records);
        const std::array<Oracle, 2> want = {replay(pool, seat, 0), replay(pool, seat, 1)};
        const std::array<int32_t, 1> seats = {seat};
        EXPECT_EQ(materialise(pool, seats, layer.ops(), layer.stream()), 1);
        EXPECT_EQ(pool.cursor(seat), (Cursor{8 + records, 8 + records}));
        for (int64_t j = 0; j < 2; j++) {
          const View<2> got = pool.gdn(0).checkpoint[seat][j];
          // K products a row and step, each of them rounded; and the roundings to the dtype, on the grid and at last.
          const double tolerance =
              want[j].largest * (records * 2 * (TinyLayer::K + 4) * 0x1p-24 + (2 + records / 8) * roundoff(checkpoint));
          for (int64_t i = 0; i < TinyLayer::V * TinyLayer::K; i++)
            EXPECT_NEAR(load_as_float(got.data, got.dtype, i), want[j].S[i], tolerance) << records << " records";
        }
      }
    }
  }
}

TEST(Materialise, IsAFoldByHand) {
  for (const DType checkpoint : kDTypes) {
    TinyLayer layer({.checkpoint = checkpoint, .kda = checkpoint == DType::f16});
    for (int32_t records = 1; records <= 7; records++) {
      StatePool pool(layer.shape(), layer.pool_options(3, 16));
      const int32_t seat = seat_with_records(layer, pool, records), copy = pool.copy(seat);
      const int64_t folded = 8, pos = 8 + records;
      layer.ops().gdn_fold({.rows = {.count = 1, .seat = &copy, .first = &pos, .folded = &folded, .fold_to = &pos},
                            .state = pool.gdn(0),
                            .grain = 0},
                           layer.stream());
      const std::array<int32_t, 1> seats = {seat};
      materialise(pool, seats, layer.ops(), layer.stream());
      pool.commit(copy, pos, 0);
      EXPECT_EQ(pool.export_seat(seat), pool.export_seat(copy)) << records;
    }
  }
}

// Several seats at once, some of them plain already; the side state is told, and no other seat is touched.
TEST(Materialise, TakesManySeatsAndCountsThoseWithRecords) {
  TinyLayer layer({.checkpoint = DType::bf16});
  StatePool pool(layer.shape(), layer.pool_options(5, 16));
  CountingSide side(5);
  pool.attach(side);
  const int32_t a = seat_with_records(layer, pool, 5), plain = seat_with_records(layer, pool, 0),
                b = seat_with_records(layer, pool, 3), other = seat_with_records(layer, pool, 6);
  const std::vector<std::byte> untouched = pool.export_seat(other), was_plain = pool.export_seat(plain);
  const std::array<int32_t, 3> seats = {b, plain, a};
  EXPECT_EQ(materialise(pool, seats, layer.ops(), layer.stream()), 2);
  EXPECT_EQ(pool.cursor(a), (Cursor{13, 13}));
  EXPECT_EQ(pool.cursor(b), (Cursor{11, 11}));
  EXPECT_EQ(pool.export_seat(other), untouched);
  EXPECT_EQ(pool.export_seat(plain), was_plain);
  for (const int32_t seat : {a, b, plain, other}) EXPECT_EQ(side.cursor(seat), pool.cursor(seat));
  EXPECT_FALSE(side.broken);
  EXPECT_EQ(materialise(pool, seats, layer.ops(), layer.stream()), 0) << "nothing is left";
  EXPECT_EQ(materialise(pool, {}, layer.ops(), layer.stream()), 0);
}

// A seat off the grid can be kept and sent, and verify says that it cannot go on.
TEST(Materialise, OffTheGridVerifyRefuses) {
  TinyLayer layer({.checkpoint = DType::bf16});
  for (int32_t records = 1; records <= 7; records++) {
    StatePool pool(layer.shape(), layer.pool_options(2, 4));
    const int32_t seat = seat_with_records(layer, pool, records);
    const std::array<int32_t, 1> seats = {seat};
    materialise(pool, seats, layer.ops(), layer.stream());
    const Picture before = picture_of(pool);
    EXPECT_EQ(refusal([&] { layer.step(pool, {{.seat = seat, .story = 16}}); }), ErrorKind::invalid_argument)
        << records;
    EXPECT_EQ(pool.cursor(seat), (Cursor{8 + records, 8 + records}));
    const std::vector<std::byte> file = pool.export_seat(seat);
    const int32_t copy = pool.copy(seat);
    EXPECT_EQ(pool.export_seat(copy), file);
    pool.free(seat), pool.free(copy);
    pool.check_invariants();
  }
}

// On the grid the exact rule holds, across as many grid points as the ring spans: the seat goes on as if nothing had
// happened.
TEST(Materialise, OnTheGridTheSeatGoesOnBitForBit) {
  for (const DType checkpoint : kDTypes) {
    TinyLayer layer({.checkpoint = checkpoint});
    for (const int32_t records : {8, 16}) {
      StatePool pool(layer.shape(), layer.pool_options(1, 16));
      const int32_t seat = seat_with_records(layer, pool, records);
      const std::array<int32_t, 1> seats = {seat};
      materialise(pool, seats, layer.ops(), layer.stream());
      ASSERT_EQ(layer.check(pool, seat, 16), "") << name_of(checkpoint) << ", " << records << " records";
      for (int i = 0; i < 5; i++) {
        ASSERT_EQ(layer.step(pool, {{.seat = seat, .story = 16, .length = 5, .keep = 4, .noise = Noise::nan}}), "")
            << name_of(checkpoint) << ", " << records << " records";
      }
    }
  }
}

// A cached seat is read-only: refused, before anything of it or of its neighbours has changed.
TEST(Materialise, CachedSeatsAreRefused) {
  TinyLayer layer({.checkpoint = DType::bf16});
  StatePool pool(layer.shape(), layer.pool_options(3, 4));
  const int32_t seat = seat_with_records(layer, pool, 5), cached = pool.snapshot(seat, 13);
  const Picture before = picture_of(pool);
  const std::vector<std::vector<int32_t>> lists = {{cached}, {seat, cached}, {cached, seat}};
  for (const std::vector<int32_t>& seats : lists) {
    EXPECT_EQ(refusal([&] { materialise(pool, seats, layer.ops(), layer.stream()); }), ErrorKind::invalid_argument);
    EXPECT_EQ(picture_of(pool), before) << seats.size() << " seats";
  }
}

TEST(Materialise, UnderSnapshotThereIsNothingToDo) {
  TinyLayer layer({.rollback = StateRollback::snapshot});
  StatePool pool(layer.shape(), layer.pool_options(1, 4));
  const int32_t seat = pool.allocate();
  ASSERT_TRUE(pool.reserve(seat, 48));
  ASSERT_EQ(layer.prefill(pool, seat, 0, 13), "");
  const Picture before = picture_of(pool);
  const std::array<int32_t, 1> seats = {seat};
  EXPECT_EQ(materialise(pool, seats, layer.ops(), layer.stream()), 0);
  EXPECT_EQ(picture_of(pool), before);
}

}  // namespace
}  // namespace deltaring::test
