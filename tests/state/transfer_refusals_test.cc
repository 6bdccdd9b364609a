// Files that are no exported seats, or not of this pool: refused by kind, with nothing changed.
#include <gtest/gtest.h>

#include <numeric>

#include "support/counting_side.h"
#include "support/pool_pieces.h"
#include "support/pool_scribe.h"
#include "support/refusal.h"
#include "support/seat_file.h"

namespace deltaring::test {
namespace {

StateShape tiny_shape() {
  return {.gdn_layers = 2,
          .Hk = 1,
          .Hv = 2,
          .K = 4,
          .V = 3,
          .G = 1,
          .conv_channels = 5,
          .taps = 4,
          .kv_layers = 1,
          .Hkv = 1,
          .D = 2};
}

StateOptions tiny_options() {
  StateOptions o = small_options();
  o.seats = 2, o.kv_tokens = 40;
  return o;
}

// A seat with the cursor {16, 21}.
SeatFile small_file(StatePool& pool) {
  const int32_t seat = pool.allocate();
  std::vector<uint32_t> log(21);
  std::iota(log.begin(), log.end(), 5);
  EXPECT_TRUE(pool.reserve(seat, 21));
  write_row(pool, seat, {}, log, 16);
  pool.commit(seat, 16, 21);
  SeatFile file = pool.export_seat(seat);
  pool.free(seat);
  return file;
}

class Refusals : public testing::Test {
 protected:
  // The pool refuses the file as one of the kinds and is as it was; returns what it said.
  std::string refuse(StatePool& pool, const SeatFile& file, std::initializer_list<ErrorKind> kinds) {
    const Picture before = picture_of(pool);
    std::string what;
    const auto kind = refusal([&] { pool.import_seat(file); }, &what);
    EXPECT_TRUE(kind && std::find(kinds.begin(), kinds.end(), *kind) != kinds.end()) << "kind of: " << what;
    EXPECT_EQ(picture_of(pool), before);
    pool.check_invariants();
    return what;
  }

  StatePool pool_ = StatePool(tiny_shape(), tiny_options());
  const SeatFile file_ = small_file(pool_);
};

constexpr auto kCorrupt = ErrorKind::corrupt, kUnsupported = ErrorKind::unsupported;

TEST_F(Refusals, EveryDamagedByte) {
  ASSERT_EQ(pool_.import_seat(file_), 0);
  pool_.free(0);
  for (size_t at = 0; at < file_.size(); at++) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      SeatFile bad = file_;
      bad[at] ^= static_cast<std::byte>(flip);
      refuse(pool_, bad, {kCorrupt, kUnsupported});
      if (HasFailure()) FAIL() << "byte " << at << " of " << file_.size() << " ^ " << flip;
    }
  }
}

TEST_F(Refusals, EveryLengthButItsOwn) {
  for (size_t length = 0; length < file_.size(); length++) {
    refuse(pool_, SeatFile(file_.begin(), file_.begin() + static_cast<int64_t>(length)), {kCorrupt});
    if (HasFailure()) FAIL() << "cut at " << length << " of " << file_.size();
  }
  SeatFile longer = file_;
  for (int i = 0; i < 20; i++) {
    longer.push_back(std::byte{0});
    refuse(pool_, longer, {kCorrupt});
    SeatFile good = longer;
    sign(good);
    refuse(pool_, good, {kCorrupt});
  }
}

TEST_F(Refusals, AnotherVersionByName) {
  const size_t at = 8;  // behind the magic
  int64_t version;
  std::memcpy(&version, &file_[at], 8);
  for (const int64_t other : {version + 1, version - 1, int64_t{1} << 40, int64_t{-1}}) {
    const std::string what = refuse(pool_, with_word(file_, at, other), {kUnsupported});
    EXPECT_NE(what.find("version " + std::to_string(other)), std::string::npos) << what;
    EXPECT_NE(what.find(std::to_string(version)), std::string::npos) << what;
  }
}

// A change of any extent, dtype or grain is named.
TEST_F(Refusals, AnotherShapeByName) {
  struct Change {
    const char* name;
    std::function<void(StateShape&, StateOptions&)> make;
  };
  const Change changes[] = {
      {"GDN layers 2", [](StateShape& s, StateOptions&) { s.gdn_layers = 3; }},
      {"Hk 1", [](StateShape& s, StateOptions&) { s.Hk = 2; }},
      {"Hv 2", [](StateShape& s, StateOptions&) { s.Hv = 4; }},
      {"K 4", [](StateShape& s, StateOptions&) { s.K = 3; }},
      {"V 3", [](StateShape& s, StateOptions&) { s.V = 4; }},
      {"G 1", [](StateShape& s, StateOptions&) { s.G = 4; }},
      {"conv channels 5", [](StateShape& s, StateOptions&) { s.conv_channels = 6; }},
      {"taps 4", [](StateShape& s, StateOptions&) { s.taps = 3; }},
      {"attention layers 1", [](StateShape& s, StateOptions&) { s.kv_layers = 2; }},
      {"Hkv 1", [](StateShape& s, StateOptions&) { s.Hkv = 2; }},
      {"D 2", [](StateShape& s, StateOptions&) { s.D = 1; }},
      {"checkpoint dtype", [](StateShape&, StateOptions& o) { o.checkpoint = DType::f32; }},
      {"checkpoint dtype", [](StateShape&, StateOptions& o) { o.checkpoint = DType::f16; }},
      {"record dtype", [](StateShape&, StateOptions& o) { o.record = DType::bf16; }},
      {"KV dtype", [](StateShape&, StateOptions& o) { o.kv = DType::bf16; }},
      {"grain 8", [](StateShape&, StateOptions& o) { o.ring = {.T = 4, .F = 16, .R = 32}; }},
      {"grain 8", [](StateShape&, StateOptions& o) { o.ring.policy = FoldPolicy::every; }},
      {"grain 8", [](StateShape&, StateOptions& o) { o.rollback = StateRollback::snapshot; }},
  };
  for (const auto& [name, make] : changes) {
    StateShape shape = tiny_shape();
    StateOptions o = tiny_options();
    make(shape, o);
    StatePool other(shape, o);
    const std::string what = refuse(other, file_, {kUnsupported});
    EXPECT_NE(what.find(name), std::string::npos) << what << " does not name " << name;
  }
}

// Extents that swap give files of the same size.
TEST_F(Refusals, SwappedExtents) {
  StateShape swapped = tiny_shape();
  std::swap(swapped.K, swapped.V);
  StatePool other(swapped, tiny_options());
  refuse(other, file_, {kUnsupported});
}

TEST_F(Refusals, OtherSideState) {
  CountingSide side(2);
  StatePool with(tiny_shape(), tiny_options());
  with.attach(side);
  EXPECT_NE(refuse(with, file_, {kUnsupported}).find("side state"), std::string::npos);
  EXPECT_NE(refuse(pool_, small_file(with), {kUnsupported}).find("side state"), std::string::npos);
  EXPECT_EQ(side.clears, 1) << "by small_file; a refused import clears nothing";
}

// A cursor that nobody can have, signed well.
TEST_F(Refusals, ForgedCursors) {
  const size_t at = find_word(file_, 16);
  int64_t pos;
  std::memcpy(&pos, &file_[at + 8], 8);
  ASSERT_EQ(pos, 21);
  ASSERT_TRUE(is_signed(file_));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();
  const std::pair<int64_t, int64_t> cursors[] = {{22, 21},
                                                 {21, 16},
                                                 {-1, 21},
                                                 {-16, -11},
                                                 {16, -21},
                                                 {kLeast, kMost},
                                                 {kMost, kLeast},
                                                 {kMost, kMost},
                                                 {kLeast, kLeast},
                                                 {0, 21},
                                                 {16, 20},
                                                 {16, 22},
                                                 {17, 21},
                                                 {8, 21},
                                                 {16, 16},
                                                 {21, 21},
                                                 {0, 0},
                                                 {24, 29},
                                                 {8, 13},
                                                 {16, kMost},
                                                 {0, kMost},
                                                 {kMost - 8, kMost},
                                                 {int64_t{1} << 40, (int64_t{1} << 40) + 5}};
  for (const auto& [folded, to] : cursors) {
    const SeatFile forged = with_word(with_word(file_, at, folded), at + 8, to);
    const Picture before = picture_of(pool_);
    // Where the state would not fit anyway the pool may say so instead.
    int32_t seat = -1;
    const auto kind = refusal([&] { seat = pool_.import_seat(forged); });
    EXPECT_EQ(seat, -1) << folded << " " << to;
    EXPECT_TRUE(kind == kCorrupt || kind == kUnsupported || (!kind && to > 40)) << folded << " " << to;
    EXPECT_EQ(picture_of(pool_), before) << folded << " " << to;
  }
}

TEST_F(Refusals, ForgedSizes) {
  const size_t at = find_word(file_, static_cast<int64_t>(file_.size()));
  for (const int64_t size : {int64_t{0}, int64_t{-1}, static_cast<int64_t>(file_.size()) + 8, int64_t{1} << 60})
    refuse(pool_, with_word(file_, at, size), {kCorrupt});
  // Every other word of the header, with every kind of value. The header ends where the state begins.
  const size_t cursor = find_word(file_, 16);
  for (size_t word = 0; word <= cursor + 24; word += 8) {
    for (const int64_t value : {int64_t{0}, int64_t{-1}, int64_t{77}, int64_t{1} << 62}) {
      int64_t old;
      std::memcpy(&old, &file_[word], 8);
      if (old == value) continue;
      refuse(pool_, with_word(file_, word, value), {kCorrupt, kUnsupported});
      if (HasFailure()) FAIL() << "word " << word / 8 << " = " << value;
    }
  }
}

// More records than the ring holds beside a window, though the shapes agree.
TEST(TransferLimits, RecordsMustFitTheRing) {
  StateOptions wide = tiny_options(), narrow = tiny_options();
  wide.ring = {.T = 16, .F = 8, .R = 64};
  for (int64_t records = 1; records <= 23; records++) {
    StatePool from(tiny_shape(), wide), to(tiny_shape(), narrow);
    const int32_t seat = from.allocate();
    ASSERT_TRUE(from.reserve(seat, 40));
    std::vector<uint32_t> log(static_cast<size_t>(8 + records));
    std::iota(log.begin(), log.end(), 1);
    write_row(from, seat, {}, std::span(log).first(8), 8);
    from.commit(seat, 8, 8);
    write_row(from, seat, std::span(log).first(8), std::span(log).subspan(8), 8);
    from.commit(seat, 8, records);
    const SeatFile file = from.export_seat(seat);
    const Picture before = picture_of(to);
    std::string what;
    const auto kind = refusal([&] { to.import_seat(file); }, &what);
    if (records <= 12) {  // R - T
      EXPECT_FALSE(kind) << what;
      EXPECT_EQ(difference(to, 0, log, 4), "") << records;
    } else {
      EXPECT_EQ(kind, kUnsupported) << records;
      EXPECT_NE(what.find("--linear-replayssm-cache-len"), std::string::npos) << what;
      EXPECT_EQ(picture_of(to), before);
    }
  }
}

TEST(TransferLimits, RecordsCannotEnterASnapshotPool) {
  StateOptions every = tiny_options(), snapshot = tiny_options();
  every.ring.policy = FoldPolicy::every, snapshot.rollback = StateRollback::snapshot;
  StatePool from(tiny_shape(), every), to(tiny_shape(), snapshot);
  const int32_t seat = from.allocate();
  ASSERT_TRUE(from.reserve(seat, 8));
  from.commit(seat, 5, 5), from.commit(seat, 5, 2);
  std::string what;
  EXPECT_EQ(refusal([&] { to.import_seat(from.export_seat(seat)); }, &what), kUnsupported);
  EXPECT_NE(what.find("2 records"), std::string::npos) << what;
  EXPECT_EQ(to.free_seats(), 2);
}

}  // namespace
}  // namespace deltaring::test
