// Any bytes as a life of requests over one pool: prefills, ragged verifies with any acceptance, rewinds, copies, shared
// prefixes, exports, imports. Each accepted output has the bits of plain decoding, no seat sees another, and what is
// refused changes nothing. Aborts on a violation.
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "support/counting_side.h"
#include "support/seat_file.h"
#include "support/tiny_layer.h"

namespace deltaring::test {
namespace {

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}
void require_same(const std::string& difference) { require(difference.empty(), difference.c_str()); }

// Decoded once: what plain decoding says for each dtype of the checkpoint, kind of gate and grain.
TinyLayer& layer_of(uint8_t byte) {
  static std::unique_ptr<TinyLayer> layers[3][2][2];
  const int dtype = byte % 3, kda = byte / 3 % 2, wide = byte / 6 % 2;
  std::unique_ptr<TinyLayer>& layer = layers[dtype][kda][wide];
  if (!layer) {
    constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};
    layer = std::make_unique<TinyLayer>(TinyOptions{
        .checkpoint = kDTypes[dtype], .record = kda ? DType::bf16 : DType::f32, .kda = kda == 1, .F = wide ? 16 : 8});
  }
  return *layer;
}

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  bool empty() const { return at_ == end_; }
  int32_t draw(int32_t n) { return empty() ? 0 : *at_++ % n; }

 private:
  const uint8_t *at_, *end_;
};

StateOptions options_of(Bytes& bytes, const TinyLayer& layer) {
  const int64_t T = 1 + bytes.draw(8), seats = 1 + bytes.draw(5);
  StateOptions o = layer.pool_options(seats, T, int64_t{1} << bytes.draw(5));
  o.ring.R *= 1 + bytes.draw(2);
  o.kv_tokens = 20 + 40 * bytes.draw(8);
  return o;
}

class Life {
 public:
  Life(Bytes& bytes, TinyLayer& layer)
      : bytes_(bytes),
        layer_(layer),
        pool_(layer.shape(), options_of(bytes, layer)),
        side_(pool_.options().seats),
        seats_(static_cast<size_t>(pool_.options().seats)) {
    pool_.attach(side_);
    const KvPages kv = pool_.kv(0);
    std::memset(kv.k.data, 0xff, static_cast<size_t>(pool_.plan().pages * pool_.plan().kv_per_page));
    for (int32_t seat = 0; seat < static_cast<int32_t>(seats_.size()); seat++) poison(seat);
    allocate();
  }
  ~Life() { pool_.detach(side_); }

  void live() {
    for (int i = 0; i < 48 && !bytes_.empty(); i++) {
      operate();
      if (i % 4 == 0) check();
    }
    check();
    end();
  }

 private:
  struct Seat {
    SeatState state = SeatState::free;
    int32_t references = 0;
    int story = 0;
    int64_t pos = 0;
  };

  Seat& at(int32_t seat) { return seats_[static_cast<size_t>(seat)]; }

  // One that is taken, mostly.
  int32_t any_seat() {
    const int32_t count = static_cast<int32_t>(seats_.size()), any = bytes_.draw(256);
    for (int32_t i = 0; i < count && any < 240; i++)
      if (at((any + i) % count).state != SeatState::free) return (any + i) % count;
    return any % count;
  }

  // Nobody may read what is left in a seat that has been freed.
  void poison(int32_t seat) {
    const GdnState s = pool_.gdn(0);
    const auto fill = [](const auto& block, int64_t elements) {
      std::memset(block.data, 0xff, static_cast<size_t>(elements) * size_of(block.dtype));
    };
    fill(s.checkpoint[seat], s.checkpoint.stride[0]), fill(s.record_k[seat], s.record_k.stride[0]);
    fill(s.record_v[seat], s.record_v.stride[0]), fill(s.record_g[seat], s.record_g.stride[0]);
    fill(s.record_beta[seat], s.record_beta.stride[0]);
    fill(pool_.conv_ring(0)[seat], pool_.conv_ring(0).stride[0]);
  }

  void vacate(int32_t seat) { at(seat) = {}, poison(seat); }

  void operate() {
    switch (bytes_.draw(16)) {
      case 0:
      case 1:
        return allocate();
      case 2:
        return prefill(any_seat());
      case 3:
        return rewind(any_seat());
      case 4:
        return copy(any_seat());
      case 5:
        return snapshot(any_seat());
      case 6:
        return share_or_release(any_seat());
      case 7:
        return own(any_seat());
      case 8:
        return free(any_seat());
      case 9:
        return export_seat(any_seat());
      case 10:
        return import_seat();
      default:
        return verify();
    }
  }

  // An operation that the seat's state forbids throws; check() sees that nothing has changed.
  template <class Call>
  bool refused(int32_t seat, bool allowed, const Call& call) {
    if (allowed) return false;
    try {
      call();
    } catch (const Error& e) {
      require(e.kind() == ErrorKind::invalid_argument, e.what());
      return true;
    }
    require(false, "a seat took what its state forbids");
    return at(seat).state == SeatState::free;
  }

  // -1 says that there is no room.
  bool given(int32_t seat, int64_t tokens) {
    const int64_t rows = pool_.options().page_rows, pages = (tokens + rows - 1) / rows;
    if (seat < 0) require(pool_.free_seats() == 0 || pool_.free_pages() < pages, "refused with room");
    if (seat >= 0) require(at(seat).state == SeatState::free, "a seat was given twice");
    return seat >= 0;
  }

  // The story goes on as another one that is the same so far, if there is one.
  void choose_story(Seat& seat) {
    const int any = bytes_.draw(TinyLayer::kStories);
    for (int i = 0; i < TinyLayer::kStories; i++) {
      const int other = (any + i) % TinyLayer::kStories;
      if (TinyLayer::agreement(seat.story, other) >= seat.pos) return void(seat.story = other);
    }
  }

  void allocate() {
    const int32_t seat = pool_.allocate();
    if (given(seat, 0)) at(seat) = {.state = SeatState::owned, .story = bytes_.draw(TinyLayer::kStories)};
  }

  void prefill(int32_t seat) {
    Seat& s = at(seat);
    const int32_t length = 1 + bytes_.draw(20);
    if (refused(seat, s.state == SeatState::owned, [&] { pool_.reserve(seat, length); })) return;
    choose_story(s);
    if (s.pos + length > TinyLayer::kTokens || !pool_.reserve(seat, s.pos + length)) return;
    require_same(layer_.prefill(pool_, seat, s.story, length));
    s.pos += length;
  }

  void verify() {
    const int32_t T = static_cast<int32_t>(pool_.options().ring.T), which = bytes_.draw(64);
    std::vector<Turn> turns;
    for (int32_t seat = 0; seat < static_cast<int32_t>(seats_.size()); seat++) {
      Seat& s = at(seat);
      if (!(which >> seat & 1) || s.state != SeatState::owned) continue;
      choose_story(s);
      const int32_t length = bytes_.draw(T + 1), what = bytes_.draw(256);
      if (s.pos + length > TinyLayer::kTokens || !pool_.reserve(seat, s.pos + length)) continue;
      const Noise noise = static_cast<Noise>(what % 4);
      turns.push_back(
          {.seat = seat, .story = s.story, .length = length, .keep = what / 4 % (length + 1), .noise = noise});
      s.pos += turns.back().keep;
    }
    if (which >> 5 & 1) turns.insert(turns.begin(), {.seat = -1, .length = T, .keep = 0, .noise = Noise::nan});
    require_same(layer_.step(pool_, turns));
  }

  void rewind(int32_t seat) {
    Seat& s = at(seat);
    if (refused(seat, s.state == SeatState::owned, [&] { pool_.rewind(seat, s.pos); })) return;
    const int64_t folded = pool_.cursor(seat).folded,
                  to = s.pos + 1 - bytes_.draw(static_cast<int32_t>(s.pos - folded) + 4);
    try {
      pool_.rewind(seat, to);
      require(folded <= to && to <= s.pos, "rewound out of reach");
      s.pos = to;
    } catch (const Error& e) {
      require(e.kind() == ErrorKind::out_of_reach && (to < folded || to > s.pos), e.what());
    }
  }

  void copy(int32_t from) {
    if (refused(from, at(from).state != SeatState::free, [&] { pool_.copy(from); })) return;
    const int32_t to = pool_.copy(from);
    if (given(to, at(from).pos)) at(to) = at(from), at(to).state = SeatState::owned, at(to).references = 0;
  }

  void snapshot(int32_t from) {
    const int64_t pos = at(from).pos, wrong = bytes_.draw(8);
    const bool allowed = at(from).state != SeatState::free && wrong == 0;
    if (refused(from, allowed, [&] { pool_.snapshot(from, pos + wrong); })) return;
    const int32_t to = pool_.snapshot(from, pos);
    if (given(to, pos)) at(to) = at(from), at(to).state = SeatState::cached, at(to).references = 1;
  }

  void share_or_release(int32_t seat) {
    Seat& s = at(seat);
    const bool cached = s.state == SeatState::cached;
    if (bytes_.draw(2)) {
      if (refused(seat, cached, [&] { pool_.share(seat); })) return;
      pool_.share(seat), s.references++;
    } else {
      if (refused(seat, cached, [&] { pool_.release(seat); })) return;
      pool_.release(seat);
      if (--s.references == 0) vacate(seat);
    }
  }

  void own(int32_t from) {
    Seat& s = at(from);
    if (refused(from, s.state == SeatState::cached, [&] { pool_.own(from); })) return;
    const int32_t to = pool_.own(from);
    if (s.references == 1) {
      require(to == from, "the last reference was copied");
    } else {
      if (!given(to, s.pos)) return;
      at(to) = s, s.references--;
    }
    at(to).state = SeatState::owned, at(to).references = 0;
  }

  void free(int32_t seat) {
    if (refused(seat, at(seat).state == SeatState::owned, [&] { pool_.free(seat); })) return;
    pool_.free(seat);
    vacate(seat);
  }

  void export_seat(int32_t seat) {
    if (refused(seat, at(seat).state != SeatState::free, [&] { pool_.export_seat(seat); })) return;
    file_ = pool_.export_seat(seat);
    exported_ = at(seat), exported_folded_ = pool_.cursor(seat).folded;
  }

  void import_seat() {
    if (file_.empty()) return;
    const int32_t how = bytes_.draw(4);
    if (how == 0) return import_damaged();
    if (how == 1) return import_elsewhere();
    const int32_t seat = pool_.import_seat(file_);
    if (!given(seat, exported_.pos)) return;
    at(seat) = {.state = SeatState::owned, .story = exported_.story, .pos = exported_.pos};
    require(pool_.export_seat(seat) == file_, "an import gives other bytes");
  }

  // Into a pool of another geometry, where it decodes on and leaves again.
  void import_elsewhere() {
    StatePool other(layer_.shape(), options_of(bytes_, layer_));
    CountingSide side(other.options().seats);
    other.attach(side);
    const int64_t T = other.options().ring.T, records = exported_.pos - exported_folded_;
    try {
      const int32_t seat = other.import_seat(file_);
      if (seat < 0) return;
      require(other.export_seat(seat) == file_, "another pool gives other bytes");
      const int32_t length = static_cast<int32_t>(std::min(T, TinyLayer::kTokens - exported_.pos));
      if (!other.reserve(seat, exported_.pos + length)) return;
      require_same(layer_.step(other, {{.seat = seat, .story = exported_.story, .length = length, .keep = length}}));
    } catch (const Error& e) {
      require(e.kind() == ErrorKind::unsupported && records + T > other.options().ring.R, e.what());
    }
  }

  // Damage is refused; signed anew it may be a state, though of nothing known.
  void import_damaged() {
    SeatFile bad = file_;
    const bool good_sum = bytes_.draw(2);
    // Anywhere, or in the first two bytes of a word of the header, or of the cursor.
    const size_t low = static_cast<size_t>(bytes_.draw(2)), cursor = find_word(bad, exported_.pos);
    size_t place = static_cast<size_t>(bytes_.draw(256)) * 256 + static_cast<size_t>(bytes_.draw(256));
    if (place % 4 == 1) place = place / 4 % 24 * 8 + low;
    if (place % 4 == 2) place = cursor - place / 4 % 2 * 8 + low;
    bad[place % bad.size()] ^= static_cast<std::byte>(1 + bytes_.draw(255));
    if (good_sum) sign(bad);
    const int64_t free_seats = pool_.free_seats(), free_pages = pool_.free_pages();
    int32_t seat = -1;
    try {
      seat = pool_.import_seat(bad);
      require(good_sum || seat < 0, "damage was accepted");
    } catch (const Error& e) {
      require(e.kind() == ErrorKind::corrupt || e.kind() == ErrorKind::unsupported, e.what());
    }
    if (seat >= 0) pool_.free(seat), poison(seat);
    require(pool_.free_seats() == free_seats && pool_.free_pages() == free_pages, "a refused import left something");
  }

  // On the grid a plain state goes on; elsewhere verify refuses it, so there a copy is taken.
  void fold_all(int32_t from) {
    const bool owned = at(from).state == SeatState::owned;
    const std::vector<int32_t> seats = {owned && at(from).pos % pool_.grain() != 0 ? pool_.copy(from) : from};
    if (seats[0] < 0 || refused(from, owned, [&] { materialise(pool_, seats, layer_.ops(), layer_.stream()); })) return;
    materialise(pool_, seats, layer_.ops(), layer_.stream());
    const Cursor c = pool_.cursor(seats[0]);
    require(c.folded == c.pos && c.pos == at(from).pos, "a plain state with records");
    if (seats[0] == from) return;
    try {
      layer_.step(pool_, {{.seat = seats[0], .story = at(from).story, .length = 0, .keep = 0}});
      require(false, "a state off the grid was verified");
    } catch (const Error& e) {
      require(e.kind() == ErrorKind::invalid_argument, e.what());
    }
    pool_.free(seats[0]);
    poison(seats[0]);
  }

  void check() {
    int64_t free_seats = 0;
    for (int32_t seat = 0; seat < static_cast<int32_t>(seats_.size()); seat++) {
      const Seat& s = at(seat);
      require(pool_.state_of(seat) == s.state, "the state of a seat");
      if (s.state == SeatState::free && ++free_seats) continue;
      const Cursor c = pool_.cursor(seat);
      require(c.pos == s.pos && c.folded % pool_.grain() == 0, "the cursor of a seat");
      require(side_.tokens(seat) == s.pos && side_.cursor(seat) == c && !side_.broken, "the side state of a seat");
      if (s.state == SeatState::cached) require(pool_.references(seat) == s.references, "the references of a seat");
      require_same(layer_.check(pool_, seat, s.story));
    }
    require(pool_.free_seats() == free_seats, "the number of free seats");
    pool_.check_invariants();
  }

  // Everybody reads its records once more and goes.
  void end() {
    for (int32_t seat = 0; seat < static_cast<int32_t>(seats_.size()); seat++) {
      Seat& s = at(seat);
      for (; s.state == SeatState::cached && s.references > 1; s.references--) pool_.release(seat);
      if (s.state == SeatState::cached) require(pool_.own(seat) == seat, "the last reference was copied");
      if (s.state == SeatState::free) continue;
      if (s.pos < TinyLayer::kTokens && pool_.reserve(seat, s.pos + 1))
        require_same(layer_.step(pool_, {{.seat = seat, .story = s.story}}));
      pool_.free(seat);
    }
    require(pool_.free_pages() == pool_.plan().pages, "pages were lost");
    pool_.check_invariants();
  }

  Bytes& bytes_;
  TinyLayer& layer_;
  StatePool pool_;
  CountingSide side_;
  std::vector<Seat> seats_;
  SeatFile file_;
  Seat exported_;  // what the file holds
  int64_t exported_folded_ = 0;
};

}  // namespace
}  // namespace deltaring::test

// The stacks of allocations would cost more than the allocations.
extern "C" const char* __asan_default_options() { return "malloc_context_size=2"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deltaring::test;
  Bytes bytes(data, size);
  TinyLayer& layer = layer_of(static_cast<uint8_t>(bytes.draw(256)));
  Life(bytes, layer).live();
  return 0;
}
