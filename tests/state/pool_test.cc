#include "state/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"

namespace deltaring {
namespace {

// Extents that are all different, odd where they may be, so that a swapped pair shows.
StateShape small_shape() {
  return {.gdn_layers = 3,
          .Hk = 1,
          .Hv = 3,
          .K = 10,
          .V = 6,
          .conv_channels = 7,
          .taps = 4,
          .kv_layers = 2,
          .Hkv = 2,
          .D = 5};
}

StateOptions small_options() {
  return {.seats = 4,
          .kv_tokens = 100,
          .page_rows = 8,
          .ring = {.T = 4, .F = 8, .R = 16},
          .checkpoint = DType::bf16,
          .record = DType::f32,
          .kv = DType::f16};
}

// Calls each(address) for every element of the view.
void for_each_element(const View<1>& view, const std::function<void(char*)>& each) {
  for (int64_t i = 0; i < view.shape[0]; i++) each(static_cast<char*>(view.address(i * view.stride[0])));
}
template <int N>
void for_each_element(const View<N>& view, const std::function<void(char*)>& each) {
  for (int64_t i = 0; i < view.shape[0]; i++) for_each_element(view[i], each);
}

// Every piece of state by a name; each(element address, bytes of an element).
using Piece = std::function<void(const std::function<void(char*, size_t)>&)>;

template <int N>
Piece piece(const View<N>& view) {
  return [view](const std::function<void(char*, size_t)>& each) {
    for_each_element(view, [&](char* at) { each(at, size_of(view.dtype)); });
  };
}

std::map<std::string, Piece> seat_pieces(const StatePool& pool, int64_t seat) {
  std::map<std::string, Piece> pieces;
  for (int64_t l = 0; l < pool.shape().gdn_layers; l++) {
    const std::string at = " of layer " + std::to_string(l) + " seat " + std::to_string(seat);
    const GdnState state = pool.gdn(l);
    pieces["checkpoint" + at] = piece(state.checkpoint[seat]);
    pieces["record_k" + at] = piece(state.record_k[seat]);
    pieces["record_v" + at] = piece(state.record_v[seat]);
    pieces["record_g" + at] = piece(state.record_g[seat]);
    pieces["record_beta" + at] = piece(state.record_beta[seat]);
    pieces["conv" + at] = piece(pool.conv_ring(l)[seat]);
  }
  return pieces;
}

std::map<std::string, Piece> page_pieces(const StatePool& pool) {
  std::map<std::string, Piece> pieces;
  for (int64_t l = 0; l < pool.shape().kv_layers; l++) {
    for (int64_t p = 0; p < pool.plan().pages; p++) {
      const std::string at = " of layer " + std::to_string(l) + " page " + std::to_string(p);
      pieces["k" + at] = piece(pool.kv(l).k[p]);
      pieces["v" + at] = piece(pool.kv(l).v[p]);
    }
  }
  return pieces;
}

std::map<std::string, Piece> all_pieces(const StatePool& pool) {
  std::map<std::string, Piece> pieces = page_pieces(pool);
  for (int64_t seat = 0; seat < pool.options().seats; seat++) pieces.merge(seat_pieces(pool, seat));
  return pieces;
}

void fill(const Piece& piece, int value) {
  piece([value](char* at, size_t bytes) { std::memset(at, value, bytes); });
}

bool holds(const Piece& piece, int value) {
  bool all = true;
  piece([&](char* at, size_t bytes) {
    all = all && std::all_of(at, at + bytes, [value](char c) { return c == static_cast<char>(value); });
  });
  return all;
}

std::vector<int32_t> pages_of(const StatePool& pool, int32_t seat, int64_t count) {
  const KvPages kv = pool.kv(0);
  return {kv.table + seat * kv.table_stride, kv.table + seat * kv.table_stride + count};
}

int64_t pages_for(const StatePool& pool, int64_t tokens) {
  return (tokens + pool.options().page_rows - 1) / pool.options().page_rows;
}

TEST(StatePool, ViewsHaveTheShapesOfTheContract) {
  const StatePool pool(small_shape(), small_options());
  const GdnState state = pool.gdn(2);
  EXPECT_EQ(state.checkpoint.shape, (std::array<int64_t, 4>{4, 3, 6, 10}));
  EXPECT_EQ(state.record_k.shape, (std::array<int64_t, 4>{4, 1, 16, 10}));
  EXPECT_EQ(state.record_v.shape, (std::array<int64_t, 4>{4, 3, 16, 6}));
  EXPECT_EQ(state.record_g.shape, (std::array<int64_t, 3>{4, 3, 16}));
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
}

// Every piece gets a byte of its own, in several rounds of 255; none may lose it to another.
TEST(StatePool, NoPieceOverlapsAnother) {
  const StatePool pool(small_shape(), small_options());
  const std::map<std::string, Piece> pieces = all_pieces(pool);
  ASSERT_GT(pieces.size(), 100u);
  for (const int step : {1, 7}) {
    int value = 0;
    for (const auto& [name, bytes] : pieces) fill(bytes, value = (value + step) % 251);
    value = 0;
    for (const auto& [name, bytes] : pieces) EXPECT_TRUE(holds(bytes, value = (value + step) % 251)) << name;
  }
}

TEST(StatePool, AllocatesWhatWasPlanned) {
  for (const int64_t seats : {1, 3, 32}) {
    StateOptions o = small_options();
    o.seats = seats;
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
    EXPECT_EQ(bytes_in_use, seats * plan.ring_state_per_seat() + plan.pages * plan.kv_per_page);
    const int64_t padding = 7 * static_cast<int64_t>(Arena::kAlignment);  // seven kinds of pieces
    EXPECT_LE(last - first, plan.total);
    EXPECT_GE(last - first, plan.total - 2 * padding);
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
  for (const auto& [name, bytes] : all_pieces(pool)) fill(bytes, 0xff);
  for (int32_t seat = 0; seat < 4; seat++) pool.cursor(seat) = {.folded = 8, .pos = 11};
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
  const std::vector<int32_t> before = pages_of(pool, a, 2);
  EXPECT_FALSE(pool.reserve(a, pages * 8 + 1));
  EXPECT_EQ(pool.free_pages(), pages - 2);
  EXPECT_EQ(pages_of(pool, a, 2), before);
  EXPECT_TRUE(pool.reserve(a, 3)) << "less than there is";
  EXPECT_EQ(pool.free_pages(), pages - 2);
  EXPECT_FALSE(pool.reserve(b, (pages - 1) * 8));
  EXPECT_TRUE(pool.reserve(b, (pages - 2) * 8));
  EXPECT_EQ(pool.free_pages(), 0);
  EXPECT_EQ(pages_of(pool, a, 2), before);
  EXPECT_FALSE(pool.reserve(a, 17));
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
          const std::vector<int32_t> now = pages_of(pool, seat, want);
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
      ASSERT_EQ(pages_of(pool, seat, static_cast<int64_t>(pages.size())), pages);
    }
    ASSERT_EQ(static_cast<int64_t>(seen.size()) + pool.free_pages(), pool.plan().pages);
    ASSERT_EQ(static_cast<int64_t>(owned.size()) + pool.free_seats(), 4);
  }
  EXPECT_GT(refused, 100) << "the pages never ran out: the test is too mild";
}

TEST(StatePool, RewindsInsideTheRecordsOnly) {
  StatePool pool(small_shape(), small_options());
  const int32_t seat = pool.allocate();
  for (int64_t pos = 16; pos <= 23; pos++) {
    for (int64_t to = -3; to <= 30; to++) {
      pool.cursor(seat) = {.folded = 16, .pos = pos};
      if (to >= 16 && to <= pos) {
        pool.rewind(seat, to);
        EXPECT_EQ(pool.cursor(seat), (Cursor{.folded = 16, .pos = to}));
        continue;
      }
      try {
        pool.rewind(seat, to);
        ADD_FAILURE() << "rewound from " << pos << " to " << to;
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::invalid_argument);
        EXPECT_NE(std::string(e.what()).find(std::to_string(to)), std::string::npos) << e.what();
      }
      EXPECT_EQ(pool.cursor(seat), (Cursor{.folded = 16, .pos = pos}));
    }
  }
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
}  // namespace deltaring
