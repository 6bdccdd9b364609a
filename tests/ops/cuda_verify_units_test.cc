// Rows, parts and segments of the verify on tensor cores, on the host: the parts of a row are played through on a ring
// that knows which position each slot holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "backends/cuda/gdn/verify/units.h"
#include "ops/cuda_verify_testing.h"

namespace deltaring::cuda {
namespace {

// One row, and what its parts have made of it.
struct Play {
  VerifyPlan plan;
  VerifyParams params{};
  int32_t start[2] = {0, 0}, seat = 0;
  int64_t first = 0, folded = 0, fold_to = 0;
  std::vector<int64_t> ring;  // the position that a slot holds, or -1
  int64_t checkpoint = 0;
  int tokens = 0;  // seen so far

  void point() {
    params.start = start, params.seat = &seat, params.first = &first, params.folded = &folded;
    params.fold_to = &fold_to;
  }
  void parts(const auto& visit) {
    for (int part = params.first_part; part < params.parts; part++)
      visit(unit_of(params, relative(params, read_row(params, 0, 0)), part, 0, 0, 1));
  }
};

Play play_of(int64_t F, int64_t R, int64_t T, bool prefill, bool exact) {
  VerifyDesc desc = qwen(64, T, DType::bf16, exact || prefill);
  desc.R = R, desc.F = F, desc.prefill = prefill;
  Play play{.plan = plan_verify(desc, {})};
  VerifyParams& p = play.params;
  p.rows = 1, p.tokens = static_cast<int32_t>(T), p.seats = 1, p.Hv = 48, p.group = 3;
  p.first_part = play.plan.first_part, p.parts = play.plan.parts, p.part_tokens = play.plan.part;
  p.room = play.plan.room, p.values = play.plan.values;
  p.R = static_cast<int32_t>(R), p.log2_F = std::countr_zero(static_cast<uint32_t>(play.plan.grain));
  p.on_grid = F > 0, p.longest = static_cast<int32_t>(T);
  p.prefill = prefill, p.exact = play.plan.exact;
  return play;
}

// Segments follow each other, fit the kernel's tiles, cut where they must, and store once.
void expect_segments(const Play& play, const Unit& unit, const Segment* segments) {
  const int F = 1 << play.params.log2_F, due = play.params.on_grid ? unit.n / F * F : unit.folds;
  int norms = 0, next = 0, queries = 0, stores = 0, bytes = 0, jobs = 0,
      products = unit.norms() + static_cast<int>(sizeof(Norms));
  for (int i = 0; i < unit.segments; i++) {
    const Segment& s = segments[i];
    EXPECT_EQ(s.first, next);
    EXPECT_GE(s.keys, 1);
    EXPECT_LE(s.keys, s.update ? play.plan.grain : 8 * kKeyTiles);
    if (s.update) {
      EXPECT_TRUE(s.store || play.params.on_grid);                            // else a state is rounded once
      EXPECT_TRUE(s.key_tiles() <= 2 || (play.plan.wide && s.queries == 0));  // as consume folds
      EXPECT_LE(s.key_tiles() + s.query_tiles(), 4);                          // a row a lane
    }
    EXPECT_EQ(s.norms_at() % 2, 0);
    EXPECT_GE(s.norms_at(), norms);
    norms = s.norms_at() + s.keys;
    EXPECT_LE(norms, kMostRecords);
    EXPECT_LE(s.query_tiles(), kQueryTiles);
    EXPECT_EQ(s.query, std::max(s.first - unit.n, 0));
    if (play.params.exact || s.first < due) {
      EXPECT_EQ(s.first % F, 0);
      EXPECT_LE(s.keys, F);
    }
    if (s.queries > 0) {
      EXPECT_EQ(s.first + s.window, unit.n + s.query);
    }
    EXPECT_EQ(s.block, bytes);
    EXPECT_EQ(s.keys_at, s.first * kKeyPitch);
    EXPECT_EQ(s.queries_at, (unit.keys() + s.query) * kKeyPitch);
    EXPECT_EQ(s.products, products);
    EXPECT_EQ(s.slot, (unit.slot + s.first) % play.params.R);
    products += s.products_bytes();
    next += s.keys, queries += s.queries, stores += s.store, bytes += s.bytes();
    if (s.store) {
      EXPECT_EQ(next, unit.folds);
      EXPECT_TRUE(s.update);
    }
    EXPECT_TRUE(s.update || i + 1 == unit.segments);
    // A job makes two tiles of products of rows with keys, or the norms of a tile of queries.
    const int kt = s.key_tiles(), qt = s.query_tiles();
    EXPECT_GE(2 * (s.jobs() - qt), triangle(kt) + qt * kt);
    jobs += s.jobs();
  }
  EXPECT_EQ(queries, unit.T);
  EXPECT_EQ(stores, unit.folds > 0);
  EXPECT_EQ(next, unit.T > 0 ? unit.keys() : unit.folds);
  EXPECT_EQ(unit.stride, bytes);
  EXPECT_EQ(unit.jobs, static_cast<uint32_t>(jobs));
}

void expect_unit(Play& play, Unit unit) {
  ASSERT_EQ(unit.seat, 0);
  EXPECT_EQ(unit.token, play.tokens);
  EXPECT_EQ(unit.slot, play.checkpoint % play.params.R);
  EXPECT_LE(unit.T, play.plan.part);
  ASSERT_LE(unit.keys(), kMostRecords);
  for (int key = 0; key < unit.n; key++) {
    if (key < unit.records) {
      EXPECT_EQ(play.ring[slot_of(play.params, unit, key)], play.checkpoint + key) << "record " << key;
    } else {  // a token of the row, by its index
      EXPECT_EQ(unit.token + key - unit.n, play.checkpoint + key - play.first) << "key " << key;
    }
  }
  Segment segments[kSegments];
  cut(play.params, unit, segments);
  ASSERT_LE(unit.segments, kSegments);
  expect_segments(play, unit, segments);
  EXPECT_TRUE(unit.segments == 0 || unit.batch > 0);
  EXPECT_LE(unit.crowded ? unit.scratches(unit.batch) : unit.end(unit.batch), play.plan.room);
  EXPECT_LE(unit.crowded * unit.batch * unit.scratch, kWarps * play.plan.values);
  if (play.plan.appends()) {
    for (int i = 0; i < unit.T; i++) play.ring[slot_of(play.params, unit, unit.n + i)] = play.checkpoint + unit.n + i;
  }
  play.tokens += unit.T, play.checkpoint += unit.folds;
}

TEST(VerifyUnits, EveryLegalRowEndsWhereItShall) {
  std::mt19937_64 random(1);
  const auto pick = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(random() % (high - low + 1)); };
  for (int trial = 0; trial < 40000; trial++) {
    const int64_t F = 8 * pick(0, 2), R = int64_t{16} << pick(0, 2), longest = pick(1, 40);
    const bool prefill = pick(0, 1), exact = pick(0, 1);
    Play play = play_of(F, R, longest, prefill, exact);
    if (play.plan.kernel == VerifyKernel::generic) continue;
    const int64_t length = pick(0, longest);
    const int64_t grain = std::max<int64_t>(F, 1);
    play.folded = grain * pick(0, 9), play.first = play.folded + pick(0, R),
    play.start[1] = static_cast<int32_t>(length);
    const int64_t end = play.first + length, latest = prefill ? end : play.first;
    play.fold_to = play.folded + pick(0, (latest - play.folded) / grain) * grain;
    const bool together = end - play.folded <= R;
    if (!(prefill ? end - play.fold_to <= R && (play.fold_to >= play.first || together) : together)) continue;
    play.ring.assign(R, -1), play.checkpoint = play.folded;
    for (int64_t p = play.folded; p < play.first; p++) play.ring[p % R] = p;
    play.point();
    play.parts([&](const Unit& unit) { expect_unit(play, unit); });
    ASSERT_FALSE(testing::Test::HasFailure())
        << "F=" << F << " R=" << R << " longest=" << longest << " length=" << length << " folded=" << play.folded
        << " first=" << play.first << " fold_to=" << play.fold_to << " prefill=" << prefill << " "
        << to_string(play.plan);
    EXPECT_EQ(play.checkpoint, play.fold_to);
    EXPECT_EQ(play.tokens, length);
    if (!play.plan.appends()) continue;
    for (int64_t p = play.fold_to; p < end; p++) EXPECT_EQ(play.ring[p % R], p);
  }
}

// What the host plans is enough for every unit a row can become: any records and tokens that fit the ring.
TEST(VerifyUnits, EveryUnitFitsThePlan) {
  struct Shape {
    int64_t group, B;
    DType state;
  };
  std::vector<Shape> shapes;
  for (const int64_t group : {1, 3, 8})
    for (const int64_t B : {1, 512})
      for (const DType state : {DType::bf16, DType::f32}) shapes.push_back({group, B, state});
  for (const int64_t R : {16, 32, 64}) {
    for (const int64_t F : {0, 8, 16}) {
      for (int64_t T = 1; T <= std::min<int64_t>(R, 16) && R > F && (F > 0 || R <= 16); T++) {
        for (const bool exact : {false, true}) {
          for (const auto& [group, B, state] : shapes) {
            if (F == 0 && exact && state == DType::f32) continue;
            VerifyDesc desc = qwen(B, T, state, exact);
            desc.Hk = 4, desc.Hv = 4 * group, desc.R = R, desc.F = F;
            const VerifyPlan plan = plan_verify(desc, {});
            ASSERT_EQ(plan.kernel, VerifyKernel::tensor);
            VerifyParams p{};
            p.R = static_cast<int32_t>(R), p.log2_F = std::countr_zero(static_cast<uint32_t>(plan.grain));
            p.exact = plan.exact, p.on_grid = F > 0;
            p.room = plan.room, p.values = plan.values;
            for (int32_t n = 0; n <= R; n++) {
              for (int32_t t = 0; t <= std::min<int64_t>(T, R - n); t++) {
                for (int32_t folds = 0; folds <= n; folds += std::max(static_cast<int32_t>(F), 1)) {
                  Unit unit{.heads = plan.heads, .T = t, .n = n, .folds = folds};
                  unit.opening = opening_of(p, unit);
                  Segment segments[kSegments];
                  cut(p, unit, segments);
                  ASSERT_LE(unit.crowded ? unit.scratches(unit.batch) : unit.end(unit.batch), plan.room)
                      << to_string(plan) << " n=" << n << " t=" << t;
                  ASSERT_LE(unit.crowded * unit.batch * unit.scratch, kWarps * plan.values);
                  ASSERT_TRUE(unit.segments == 0 || unit.batch > 0) << to_string(plan) << " n=" << n << " t=" << t;
                  ASSERT_TRUE(n >= plan.grain + T || unit.end(1) <= plan.room)
                      << to_string(plan) << " n=" << n << " t=" << t;
                  for (int i = 0; i < unit.segments; i++) {
                    ASSERT_LE(segments[i].keys * (2 * kTileBytes / kHead / static_cast<int>(size_of(state))),
                              plan.values)
                        << to_string(plan);
                  }
                  for (int i = 0; i < unit.segments && !plan.wide; i++) {
                    ASSERT_LE(segments[i].key_tiles(), 3) << to_string(plan);
                    ASSERT_LE(segments[i].query_tiles(), 1) << to_string(plan);
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

// Impossible numbers cost a row its seat in every part, and each of its tokens is cleared once.
TEST(VerifyUnits, ImpossibleRowsAreCleared) {
  std::mt19937_64 random(2);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();
  const int64_t wild[] = {-1, kMost, kLeast, kLastPosition + 1, 7, int64_t{1} << 33, -(int64_t{1} << 40)};
  for (int trial = 0; trial < 20000; trial++) {
    const bool prefill = random() % 2;
    Play play = play_of(random() % 2 ? 8 : 16, 32, 20, prefill, true);
    play.folded = 32, play.first = 40, play.fold_to = 32;
    const int32_t length = static_cast<int32_t>(random() % 31);  // longer than the longest, too
    play.start[1] = length, play.params.tokens = 30;
    if (length <= 20) {
      int64_t* numbers[] = {&play.folded, &play.first, &play.fold_to};
      const uint64_t which = random() % 4;
      if (which == 3) play.seat = random() % 2 ? 1 : -1;
      if (which < 3) *numbers[which] = wild[random() % std::size(wild)];
    }
    play.point();
    int cleared = 0;
    bool seated = false;
    play.parts([&](const Unit& unit) {
      seated = seated || unit.seat >= 0;
      EXPECT_EQ(unit.token, cleared);
      cleared += unit.T;
    });
    EXPECT_FALSE(seated);
    EXPECT_EQ(cleared, length);
  }
}

TEST(VerifyUnits, TokensThatAreNone) {
  for (const auto& [from, to] : {std::pair{-5, 3}, {3, 2}, {0, 21}, {std::numeric_limits<int32_t>::min(), 20}}) {
    Play play = play_of(16, 32, 20, false, true);
    play.start[0] = from, play.start[1] = to;
    play.point();
    play.parts([](const Unit& unit) {
      EXPECT_EQ(unit.seat, -1);
      EXPECT_EQ(unit.T, 0);
    });
  }
}

// The arrays serve every layer, each at seats of its own.
TEST(VerifyUnits, LayersShareTheRows) {
  Play play = play_of(8, 32, 8, false, false);
  play.point();
  play.params.seats = 5;
  for (const auto& [seat, first] : {std::pair{4, 4}, std::pair{0, 0}, std::pair{5, -1}, std::pair{-1, -1}}) {
    play.seat = seat;
    for (int layer = 0; layer < 3; layer++) {
      const Unit unit = unit_of(play.params, relative(play.params, read_row(play.params, layer, 0)), 0, 0, 0, 1);
      EXPECT_EQ(unit.seat, first < 0 ? -1 : 5 * layer + first) << seat;
    }
  }
}

// The blocks of a grid take every value head of every row once.
TEST(VerifyUnits, BlocksShareRowsAndHeads) {
  for (int group = 1; group <= 8; group++) {
    for (int heads = 1; heads <= std::min(group, kWarps); heads++) {
      for (int whole = 0; whole <= 3; whole++) {
        constexpr int kRows = 3, kKeyHeads = 2;
        VerifyParams p{.heads = heads, .shares = (group + heads - 1) / heads, .whole = whole, .group = group};
        std::vector<int> taken(kRows * kKeyHeads * group);
        for (int y = 0; y < whole + (kRows - whole) * heads; y++) {
          for (int x = 0; x < kKeyHeads * p.shares; x++) {
            const Share share = share_of(p, x, y);
            EXPECT_LE(share.heads, share.turn < whole ? heads : 1);
            EXPECT_EQ(share.turn < 0, share.heads == 0);
            for (int head = share.head; head < share.head + share.heads; head++) {
              EXPECT_EQ(head / group, share.key_head);
              taken.at(share.turn * kKeyHeads * group + head)++;
            }
          }
        }
        EXPECT_EQ(taken, std::vector<int>(taken.size(), 1)) << group << " " << heads << " " << whole;
      }
    }
  }
}

// A fold has no tokens, so no start either.
void expect_fold(int64_t F, int64_t R, int64_t folded, int64_t first, int64_t fold_to) {
  Play play = play_of(F, R, 0, false, true);
  ASSERT_EQ(play.plan.kernel, VerifyKernel::tensor);
  play.folded = folded, play.first = first, play.fold_to = fold_to, play.checkpoint = folded;
  play.params.longest = 0, play.params.tokens = 0;
  play.ring.assign(R, -1);
  for (int64_t p = folded; p < first; p++) play.ring[p % R] = p;
  play.point();
  play.params.start = nullptr;
  play.parts([&](const Unit& unit) { expect_unit(play, unit); });
  EXPECT_EQ(play.checkpoint, fold_to);
}

TEST(VerifyUnits, FoldsWithoutStart) { expect_fold(8, 64, 16, 61, 56); }

// Off the grid a fold ends anywhere.
TEST(VerifyUnits, FoldsOffTheGrid) {
  for (int64_t records = 1; records <= 32; records++)
    for (int64_t folds = 1; folds <= records; folds++)
      expect_fold(0, records <= 16 ? 16 : 32, 5, 5 + records, 5 + folds);
}

}  // namespace
}  // namespace deltaring::cuda
