// Random operations on a pool beside a plain model of it: what each seat holds is a list of tokens.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "support/counting_side.h"
#include "support/pool_pieces.h"
#include "support/pool_scribe.h"
#include "support/refusal.h"

namespace deltaring::test {
namespace {

struct Seat {
  SeatState state = SeatState::free;
  int32_t references = 0;
  Cursor cursor;
  std::vector<uint32_t> log;  // the accepted tokens
  int64_t pages = 0;          // at least so many are its own
};

struct File {
  std::vector<std::byte> bytes;
  Cursor cursor;
  std::vector<uint32_t> log;
};

StateShape shape() {
  return {.gdn_layers = 1,
          .Hk = 1,
          .Hv = 2,
          .K = 2,
          .V = 3,
          .G = 1,
          .conv_channels = 3,
          .taps = 4,
          .kv_layers = 1,
          .Hkv = 2,
          .D = 2};
}

class Twin {
 public:
  Twin(const StateOptions& options, uint64_t seed)
      : rng_(seed), pool_(shape(), options), side_(options.seats), seats_(static_cast<size_t>(options.seats)) {
    pool_.attach(side_);
    fill(all_pieces(pool_), 0xee);
  }
  ~Twin() { pool_.detach(side_); }

  void operate() {
    const int32_t seat = draw(static_cast<int32_t>(seats_.size()));
    switch (draw(12)) {
      case 0:
        return allocate();
      case 1:
        return reserve(seat);
      case 2:
      case 3:
        return verify(seat, 1 + draw(static_cast<int32_t>(pool_.options().ring.T)), false);
      case 4:
        return verify(seat, 1 + draw(24), true);
      case 5:
        return rewind(seat);
      case 6:
        return draw(2) ? copy(seat) : snapshot(seat);
      case 7:
        return share(seat);
      case 8:
        return release(seat);
      case 9:
        return own(seat);
      case 10:
        return draw(3) ? free(seat) : fold(seat);
      default:
        return draw(2) ? export_seat(seat) : import_seat();
    }
  }

  // "" when the pool is what the model says, to the last byte that can still be read.
  std::string difference() {
    int64_t free_seats = 0;
    std::map<int32_t, std::pair<int64_t, int64_t>> used;  // page -> its place, smallest `folded` of those who hold it
    for (int32_t i = 0; i < static_cast<int32_t>(seats_.size()); i++) {
      const Seat& seat = seats_[i];
      const std::string at = "seat " + std::to_string(i) + ": ";
      if (pool_.state_of(i) != seat.state) return at + "its state";
      if (seat.state == SeatState::free && ++free_seats) continue;
      if (pool_.cursor(i) != seat.cursor) return at + "its cursor";
      if (side_.tokens(i) != seat.cursor.pos || side_.cursor(i) != seat.cursor) return at + "its side state";
      if (seat.state == SeatState::cached && pool_.references(i) != seat.references) return at + "its references";
      const std::string content = deltaring::test::difference(pool_, i, seat.log, shape().taps);
      if (!content.empty()) return at + content;
      const std::vector<int32_t> pages = pages_of(pool_, i, seat.cursor.pos);
      for (size_t j = 0; j < pages.size(); j++) {
        const int64_t place = static_cast<int64_t>(j), folded = seat.cursor.folded;
        const auto [other, first] = used.try_emplace(pages[j], place, folded);
        if (first) continue;
        other->second.second = std::min(other->second.second, folded);
        if (other->second.first != place) return at + "a page that another seat has elsewhere";
        if ((place + 1) * pool_.options().page_rows > other->second.second) return at + "a page that can be rewritten";
      }
    }
    if (pool_.free_seats() != free_seats) return "the number of free seats";
    if (pool_.free_pages() + static_cast<int64_t>(used.size()) > pool_.plan().pages) return "the number of free pages";
    if (side_.broken) return "a move of side state that starts elsewhere";
    pool_.check_invariants();
    return "";
  }

  // Everybody goes; every seat and page must come back.
  std::string drain() {
    for (int32_t i = 0; i < static_cast<int32_t>(seats_.size()); i++) {
      if (seats_[i].state == SeatState::owned) free(i);
      while (seats_[i].state == SeatState::cached) release(i);
    }
    if (pool_.free_pages() != pool_.plan().pages) return "pages were lost";
    return difference();
  }

  std::map<std::string, int> counts;  // what happened how often

 private:
  int32_t draw(int32_t n) { return static_cast<int32_t>(rng_() % static_cast<uint64_t>(n)); }
  int64_t pages_for(int64_t tokens) const {
    return (tokens + pool_.options().page_rows - 1) / pool_.options().page_rows;
  }

  // An operation that the seat's state does not allow is refused; difference() sees that nothing has changed.
  template <class Call>
  bool refused(int32_t seat, std::initializer_list<SeatState> allowed, const char* name, const Call& call) {
    for (const SeatState state : allowed)
      if (seats_[seat].state == state) return counts[name]++, false;
    EXPECT_EQ(refusal(call), ErrorKind::invalid_argument) << name << " of seat " << seat;
    counts["refused"]++;
    return true;
  }

  // -1 is right only when seats or pages are short.
  bool given(int32_t seat, int64_t pages, const char* name) {
    if (seat >= 0) {
      EXPECT_TRUE(seats_[seat].state == SeatState::free) << name << " gave a seat that is taken";
      return true;
    }
    EXPECT_TRUE(pool_.free_seats() == 0 || pool_.free_pages() < pages) << name << " with room";
    counts[std::string(name) + " without room"]++;
    return false;
  }

  void vacate(int32_t seat) {
    seats_[seat] = {};
    fill(seat_pieces(pool_, seat), 0xee);
    std::set<int32_t> live;
    for (size_t i = 0; i < seats_.size(); i++)
      if (seats_[i].state != SeatState::free)
        for (const int32_t page : pages_of(pool_, static_cast<int32_t>(i), seats_[i].cursor.pos)) live.insert(page);
    for (int32_t page = 0; page < pool_.plan().pages; page++)
      if (!live.contains(page)) fill(page_pieces(pool_, page), 0xee);
  }

  void allocate() {
    counts["allocate"]++;
    const int32_t seat = pool_.allocate();
    if (given(seat, 0, "allocate"))
      seats_[seat] = {.state = SeatState::owned, .references = 0, .cursor = {}, .log = {}};
  }

  bool reserve_for(int32_t seat, int64_t tokens) {
    const int64_t more = pages_for(tokens) - seats_[seat].pages, free_pages = pool_.free_pages();
    const bool done = pool_.reserve(seat, tokens);
    if (!done) {
      EXPECT_GT(more, free_pages) << "refused with room";
      EXPECT_EQ(pool_.free_pages(), free_pages);
      counts["reserve without room"]++;
      return false;
    }
    EXPECT_LE(free_pages - pool_.free_pages(), std::max<int64_t>(more, 0));
    seats_[seat].pages = std::max(seats_[seat].pages, pages_for(tokens));
    return true;
  }

  void reserve(int32_t seat) {
    const int64_t tokens = draw(80);
    if (!refused(seat, {SeatState::owned}, "reserve", [&] { pool_.reserve(seat, tokens); })) reserve_for(seat, tokens);
  }

  void verify(int32_t at, int32_t length, bool prefill) {
    if (refused(at, {SeatState::owned}, prefill ? "prefill" : "verify", [&] { pool_.commit(at, 0, length); })) return;
    Seat& seat = seats_[at];
    const RingOptions& ring = pool_.options().ring;
    const bool replay = pool_.options().rollback == StateRollback::replay;
    const int64_t end = seat.cursor.pos + length;
    if (end > 64 || !reserve_for(at, end)) return;
    if (!prefill && replay && seat.cursor.pos - seat.cursor.folded + length > ring.R) return;
    const int64_t acc = prefill ? length : draw(length + 1);
    const Cursor from{.folded = seat.cursor.folded, .pos = prefill ? end : seat.cursor.pos};
    const int64_t fold_to = replay ? plan_fold(from, ring.F, ring.policy) : seat.cursor.pos + acc;
    std::vector<uint32_t> row(static_cast<size_t>(length));
    for (uint32_t& token : row) token = static_cast<uint32_t>(rng_());
    write_row(pool_, at, seat.log, row, std::max(seat.cursor.folded, fold_to));
    pool_.commit(at, fold_to, acc);
    seat.log.insert(seat.log.end(), row.begin(), row.begin() + acc);
    seat.cursor = {.folded = fold_to, .pos = seat.cursor.pos + acc};
  }

  // Under `every` the records may be folded on their own, as materialise does.
  void fold(int32_t at) {
    if (refused(at, {SeatState::owned}, "fold", [&] { pool_.commit(at, 0, 0); })) return;
    Seat& seat = seats_[at];
    if (pool_.options().ring.policy == FoldPolicy::grid) return;
    write_row(pool_, at, seat.log, {}, seat.cursor.pos);
    pool_.commit(at, seat.cursor.pos, 0);
    seat.cursor.folded = seat.cursor.pos;
  }

  void rewind(int32_t at) {
    Seat& seat = seats_[at];
    const int64_t to = seat.cursor.folded - 3 + draw(16);
    if (refused(at, {SeatState::owned}, "rewind", [&] { pool_.rewind(at, to); })) return;
    if (to < seat.cursor.folded || to > seat.cursor.pos) {
      EXPECT_EQ(refusal([&] { pool_.rewind(at, to); }), ErrorKind::out_of_reach);
      counts["rewind out of reach"]++;
      return;
    }
    pool_.rewind(at, to);
    seat.cursor.pos = to;
    seat.log.resize(static_cast<size_t>(to));
  }

  void copy(int32_t from) {
    if (refused(from, {SeatState::owned, SeatState::cached}, "copy", [&] { pool_.copy(from); })) return;
    const int32_t to = pool_.copy(from);
    if (given(to, pages_for(seats_[from].cursor.pos), "copy")) clone(from, to, SeatState::owned);
  }

  void snapshot(int32_t from) {
    const int64_t pos = seats_[from].cursor.pos;
    if (refused(from, {SeatState::owned, SeatState::cached}, "snapshot", [&] { pool_.snapshot(from, pos); })) return;
    if (draw(4) == 0) {
      EXPECT_EQ(refusal([&] { pool_.snapshot(from, pos + 1 + draw(9)); }), ErrorKind::invalid_argument);
      return;
    }
    const int32_t to = pool_.snapshot(from, pos);
    if (given(to, pages_for(pos), "snapshot")) clone(from, to, SeatState::cached);
  }

  void clone(int32_t from, int32_t to, SeatState state) {
    seats_[to] = seats_[from];
    seats_[to].state = state, seats_[to].references = state == SeatState::cached;
    seats_[to].pages = pages_for(seats_[to].cursor.pos);
  }

  void share(int32_t seat) {
    if (refused(seat, {SeatState::cached}, "share", [&] { pool_.share(seat); })) return;
    pool_.share(seat);
    seats_[seat].references++;
  }

  void release(int32_t seat) {
    if (refused(seat, {SeatState::cached}, "release", [&] { pool_.release(seat); })) return;
    pool_.release(seat);
    if (--seats_[seat].references == 0) vacate(seat);
  }

  void own(int32_t from) {
    if (refused(from, {SeatState::cached}, "own", [&] { pool_.own(from); })) return;
    const bool last = seats_[from].references == 1;
    const int64_t free_pages = pool_.free_pages();
    const int32_t to = pool_.own(from);
    if (last) {
      EXPECT_EQ(to, from);
      EXPECT_EQ(pool_.free_pages(), free_pages);
      seats_[from].state = SeatState::owned, seats_[from].references = 0;
    } else if (given(to, pages_for(seats_[from].cursor.pos), "own")) {
      clone(from, to, SeatState::owned);
      seats_[from].references--;
    }
  }

  void free(int32_t seat) {
    if (refused(seat, {SeatState::owned}, "free", [&] { pool_.free(seat); })) return;
    pool_.free(seat);
    vacate(seat);
  }

  void export_seat(int32_t seat) {
    if (refused(seat, {SeatState::owned, SeatState::cached}, "export", [&] { pool_.export_seat(seat); })) return;
    File file{pool_.export_seat(seat), seats_[seat].cursor, seats_[seat].log};
    if (files_.size() < 6)
      files_.push_back(std::move(file));
    else
      files_[static_cast<size_t>(draw(6))] = std::move(file);
  }

  void import_seat() {
    if (files_.empty()) return;
    counts["import"]++;
    const File& file = files_[static_cast<size_t>(draw(static_cast<int32_t>(files_.size())))];
    if (draw(4) == 0) {
      std::vector<std::byte> bad = file.bytes;
      bad[rng_() % bad.size()] ^= std::byte(1 + draw(255));
      const auto kind = refusal([&] { pool_.import_seat(bad); });
      EXPECT_TRUE(kind == ErrorKind::corrupt || kind == ErrorKind::unsupported);
      return;
    }
    const int32_t seat = pool_.import_seat(file.bytes);
    if (!given(seat, pages_for(file.cursor.pos), "import")) return;
    seats_[seat] = {.state = SeatState::owned, .references = 0, .cursor = file.cursor, .log = file.log};
    seats_[seat].pages = pages_for(file.cursor.pos);
    EXPECT_EQ(pool_.export_seat(seat), file.bytes) << "not the bytes that came in";
  }

  std::mt19937_64 rng_;
  StatePool pool_;
  CountingSide side_;
  std::vector<Seat> seats_;
  std::vector<File> files_;
};

void run(const StateOptions& options, uint64_t seed, int operations) {
  Twin twin(options, seed);
  for (int i = 0; i < operations; i++) {
    twin.operate();
    const std::string difference = i % 1000 == 999 ? twin.drain() : twin.difference();
    ASSERT_EQ(difference, "") << "behind operation " << i << " of seed " << seed;
    if (testing::Test::HasFailure()) FAIL() << "in operation " << i << " of seed " << seed;
  }
  for (const char* what : {"verify", "prefill", "rewind", "copy", "snapshot", "share", "release", "own", "free",
                           "export", "import", "refused", "rewind out of reach", "reserve without room",
                           "copy without room", "own without room", "import without room"})
    EXPECT_GT(twin.counts[what], operations / 2000) << what << ": the test is too mild";
}

StateOptions options() {
  return {.seats = 5,
          .kv_tokens = 100,
          .page_rows = 4,
          .ring = {.T = 4, .F = 8, .R = 16},
          .checkpoint = DType::bf16,
          .record = DType::f32,
          .kv = DType::f16};
}

TEST(SeatsModel, Field_D10_HundredThousandOperations) { run(options(), 1, 100000); }

TEST(SeatsModel, WithoutTheGrid) {
  StateOptions o = options();
  o.ring = {.T = 8, .F = 8, .R = 16, .policy = FoldPolicy::every};
  run(o, 2, 10000);
}

TEST(SeatsModel, UnderSnapshot) {
  StateOptions o = options();
  o.rollback = StateRollback::snapshot;
  run(o, 3, 10000);
}

TEST(SeatsModel, PagesOfOnePosition) {
  StateOptions o = options();
  o.page_rows = 1, o.ring = {.T = 8, .F = 16, .R = 32};
  run(o, 4, 10000);
}

TEST(SeatsModel, OnePageASeat) {
  StateOptions o = options();
  o.page_rows = 64, o.kv_tokens = 1, o.seats = 6;
  run(o, 5, 10000);
}

}  // namespace
}  // namespace deltaring::test
