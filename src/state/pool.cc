#include "state/pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace deltaring {

namespace {

constexpr const char* name_of(SeatState state) {
  return state == SeatState::free ? "free" : state == SeatState::owned ? "owned" : "cached";
}

}  // namespace

StatePool::StatePool(const StateShape& shape, const StateOptions& options)
    : shape_(shape),
      options_(options),
      plan_(plan_state(shape, options)),
      arena_(static_cast<size_t>(plan_.total), "state of all requests") {
  const auto& [L, Hk, Hv, K, V, G, C, taps, kv_layers, Hkv, D, draft_layers, draft_Hkv, draft_D] = shape_;
  const bool replay = options_.rollback == StateRollback::replay;
  const int64_t seats = options_.seats, R = replay ? options_.ring.R : 0;
  checkpoint_ = take<5>(options_.checkpoint, {L, seats, Hv, V, K});
  record_k_ = take<5>(options_.record, {L, seats, Hk, R, K});
  record_v_ = take<5>(options_.record, {L, seats, Hv, R, V});
  record_g_ = take<5>(DType::f32, {L, seats, Hv, R, G});
  record_beta_ = take<4>(DType::f32, {L, seats, Hv, R});
  if (plan_.snapshots_per_seat > 0) snapshots_ = take<6>(options_.checkpoint, {L, seats, options_.ring.T, Hv, V, K});
  conv_ = take<4>(DType::f32, {L, seats, plan_.conv_rows, C});
  kv_ = take<6>(options_.kv, {kv_layers, 2, plan_.pages, Hkv, options_.page_rows, D});
  draft_kv_ = take<6>(options_.kv, {draft_layers, 2, plan_.pages, draft_Hkv, options_.page_rows, draft_D});
  seats_.resize(seats);
  table_.assign(seats * plan_.pages, -1);  // a page that was not reserved is refused by the ops
  page_references_.resize(plan_.pages);
  for (int64_t seat = seats; seat-- > 0;) free_seats_.push_back(static_cast<int32_t>(seat));
  for (int64_t page = plan_.pages; page-- > 0;) free_pages_.push_back(static_cast<int32_t>(page));
}

template <int N>
View<N> StatePool::take(DType dtype, std::array<int64_t, N> shape) {
  size_t bytes = size_of(dtype);
  for (int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  return dense<N>(arena_.take(bytes), dtype, shape);
}

void StatePool::attach(SideState& side) {
  check(free_seats() == options_.seats, "side state {} must be attached while all seats are free", side.name());
  sides_.push_back(&side);
}

void StatePool::detach(SideState& side) { std::erase(sides_, &side); }

const StatePool::Seat& StatePool::taken(int32_t seat) const {
  check(seat >= 0 && seat < options_.seats && seats_[seat].state != SeatState::free,
        "seat {} is not taken; seats are [0, {})", seat, options_.seats);
  return seats_[seat];
}

StatePool::Seat& StatePool::seat_in(int32_t seat, SeatState state) {
  taken(seat);  // or seats_[seat] is no seat
  check(seats_[seat].state == state, "seat {} is {}, want one that is {}", seat, name_of(seats_[seat].state),
        name_of(state));
  return seats_[seat];
}

int32_t StatePool::take_seat(SeatState state, Cursor cursor) {
  const int32_t seat = free_seats_.back();
  free_seats_.pop_back();
  seats_[seat] = {.state = state, .references = state == SeatState::cached ? 1 : 0, .pages = 0, .cursor = cursor};
  return seat;
}

int32_t StatePool::allocate() {
  if (free_seats_.empty()) return -1;
  const int32_t seat = take_seat(SeatState::owned, {});
  // Records, conv rows and KV before the cursor are never read, so only the checkpoint needs its zeros.
  for (int64_t layer = 0; layer < shape_.gdn_layers; layer++) {
    std::memset(checkpoint_[layer][seat].data, 0, static_cast<size_t>(plan_.checkpoint_per_seat / shape_.gdn_layers));
  }
  for (SideState* side : sides_) side->clear(seat);
  return seat;
}

void StatePool::release_seat(int32_t seat) {
  for (int64_t i = seats_[seat].pages; i-- > 0;) {
    const int32_t page = std::exchange(pages_of(seat)[i], -1);
    if (--page_references_[page] == 0) free_page(page);
  }
  seats_[seat] = {};
  free_seats_.push_back(seat);
}

// visit(pages, bytes) for K and V of each layer that has them, `bytes` a page: Hkv * page_rows * D elements.
template <class Visit>
void StatePool::for_pages(const Visit& visit) const {
  for (const View<6>& kv : {kv_, draft_kv_}) {
    for (int64_t layer = 0; layer < kv.shape[0]; layer++) {
      for (const int64_t which : {0, 1}) visit(kv[layer][which], static_cast<size_t>(kv.stride[2]) * size_of(kv.dtype));
    }
  }
}

// Free pages are zeros: a drafter need not write every position, and an export, which takes them all, shall hold
// nothing of others.
void StatePool::free_page(int32_t page) {
  for_pages([&](const View<4>& pages, size_t bytes) { std::memset(pages[page].data, 0, bytes); });
  free_pages_.push_back(page);
}

void StatePool::free(int32_t seat) {
  seat_in(seat, SeatState::owned);
  release_seat(seat);
}

bool StatePool::reserve(int32_t seat, int64_t tokens) {
  int64_t& used = seat_in(seat, SeatState::owned).pages;
  const int64_t want = tokens / options_.page_rows + (tokens % options_.page_rows > 0);
  if (want - used > free_pages()) return false;
  for (; used < want; used++) {
    const int32_t page = free_pages_.back();
    free_pages_.pop_back();
    page_references_[page] = 1;
    pages_of(seat)[used] = page;
  }
  return true;
}

void StatePool::move(int32_t seat, Cursor to) {
  const Cursor from = seats_[seat].cursor;
  seats_[seat].cursor = to;
  for (SideState* side : sides_) side->move(seat, from, to);
}

void StatePool::commit(int32_t seat, int64_t fold_to, int64_t acc) {
  const Seat& at = seat_in(seat, SeatState::owned);
  int64_t end = 0;
  const bool fits = !__builtin_add_overflow(at.cursor.pos, acc, &end);
  if (options_.rollback == StateRollback::snapshot) fold_to = end;
  check(fits && acc >= 0 && at.cursor.folded <= fold_to && fold_to <= end,
        "seat {}: cannot keep {} tokens and fold to {} from folded {}, pos {}", seat, acc, fold_to, at.cursor.folded,
        at.cursor.pos);
  check(shape_.kv_layers + shape_.draft_layers == 0 || end <= at.pages * options_.page_rows,
        "seat {}: {} tokens in {} KV pages of {}", seat, end, at.pages, options_.page_rows);
  move(seat, deltaring::commit(at.cursor, fold_to, acc));
}

void StatePool::rewind(int32_t seat, int64_t pos) {
  const Cursor c = seat_in(seat, SeatState::owned).cursor;
  if (pos < c.folded || pos > c.pos) {
    fail(ErrorKind::out_of_reach, "seat {}: cannot rewind to {}; records reach back over [{}, {}], {} works", seat, pos,
         c.folded, c.pos, c.folded);
  }
  move(seat, {.folded = c.folded, .pos = pos});
}

int32_t StatePool::clone(int32_t from, SeatState state) {
  const Seat source = taken(from);
  // No rewind of either seat goes back to before `folded`, so pages before it are never written again.
  const int64_t shared = std::min(source.cursor.folded / options_.page_rows, source.pages);
  const int64_t live = std::min((source.cursor.pos + options_.page_rows - 1) / options_.page_rows, source.pages);
  if (free_seats_.empty() || live - shared > free_pages()) return -1;
  const int32_t to = take_seat(state, source.cursor);
  std::copy_n(pages_of(from), shared, pages_of(to));
  for (int64_t i = 0; i < shared; i++) page_references_[pages_of(to)[i]]++;
  for (int64_t i = shared; i < live; i++) {
    const int32_t page_from = pages_of(from)[i], page_to = free_pages_.back();
    free_pages_.pop_back();
    page_references_[page_to] = 1;
    pages_of(to)[i] = page_to;
    for_pages(
        [&](const View<4>& pages, size_t bytes) { std::memcpy(pages[page_to].data, pages[page_from].data, bytes); });
  }
  seats_[to].pages = live;
  const auto copy_block = [](const auto& from_block, const auto& to_block, int64_t elements) {
    if (elements > 0)
      std::memcpy(to_block.data, from_block.data, static_cast<size_t>(elements) * size_of(from_block.dtype));
  };
  for (int64_t layer = 0; layer < shape_.gdn_layers; layer++) {
    const auto copy_pool = [&](const auto& pool) { copy_block(pool[layer][from], pool[layer][to], pool.stride[1]); };
    copy_pool(checkpoint_), copy_pool(record_k_), copy_pool(record_v_), copy_pool(record_g_), copy_pool(record_beta_);
    copy_pool(conv_);
  }
  for (SideState* side : sides_) std::ranges::copy(side->bytes(from), side->bytes(to).begin());
  return to;
}

int32_t StatePool::copy(int32_t seat) { return clone(seat, SeatState::owned); }

int32_t StatePool::snapshot(int32_t seat, int64_t tokens) {
  const int64_t pos = taken(seat).cursor.pos;
  check(tokens == pos, "seat {}: its state is that of {} tokens, not of {}", seat, pos, tokens);
  return clone(seat, SeatState::cached);
}

void StatePool::share(int32_t cached) { seat_in(cached, SeatState::cached).references++; }

void StatePool::release(int32_t cached) {
  if (--seat_in(cached, SeatState::cached).references == 0) release_seat(cached);
}

int32_t StatePool::own(int32_t cached) {
  Seat& at = seat_in(cached, SeatState::cached);
  if (at.references == 1) {
    at.state = SeatState::owned, at.references = 0;
    return cached;
  }
  const int32_t seat = clone(cached, SeatState::owned);
  if (seat >= 0) at.references--;
  return seat;
}

SeatState StatePool::state_of(int32_t seat) const {
  check(seat >= 0 && seat < options_.seats, "seat {}: seats are [0, {})", seat, options_.seats);
  return seats_[seat].state;
}

int32_t StatePool::references(int32_t cached) const {
  const SeatState state = state_of(cached);
  check(state == SeatState::cached, "seat {} is {}, not cached", cached, name_of(state));
  return seats_[cached].references;
}

void StatePool::check_invariants() const {
  const auto hold = [](bool ok, const char* what, int64_t where) {
    if (!ok) fail(ErrorKind::corrupt, "state pool: {} ({})", what, where);
  };
  std::vector<int32_t> seats_free(seats_.size()), references(page_references_.size()), pages_free(references.size());
  for (const int32_t seat : free_seats_) hold(++seats_free[seat] == 1, "a seat is free twice", seat);
  for (const int32_t page : free_pages_) hold(++pages_free[page] == 1, "a page is free twice", page);
  for (size_t i = 0; i < seats_.size(); i++) {
    const Seat& seat = seats_[i];
    const int64_t at = static_cast<int64_t>(i);
    hold((seat.state == SeatState::free) == (seats_free[i] == 1), "a seat is free and taken, or neither", at);
    hold((seat.state == SeatState::cached) == (seat.references > 0), "references to a seat that is not cached", at);
    hold(seat.state != SeatState::free || seat.pages == 0, "a free seat has pages", at);
    hold(seat.cursor.folded <= seat.cursor.pos && seat.cursor.folded >= 0, "folded is not in [0, pos]", at);
    for (int64_t j = 0; j < seat.pages; j++) references[table_[i * static_cast<size_t>(plan_.pages) + j]]++;
  }
  for (size_t page = 0; page < references.size(); page++) {
    const int64_t at = static_cast<int64_t>(page);
    hold(references[page] == page_references_[page], "references to a page that nobody or somebody else holds", at);
    hold((references[page] == 0) == (pages_free[page] == 1), "a page is free and held, or neither", at);
  }
}

GdnState StatePool::gdn(int64_t layer) const {
  return {.checkpoint = checkpoint_[layer],
          .record_k = record_k_[layer],
          .record_v = record_v_[layer],
          .record_g = record_g_[layer],
          .record_beta = record_beta_[layer]};
}

GdnState StatePool::gdn_layers() const {
  const auto all = [this](auto first_layer) {
    first_layer.shape[0] *= shape_.gdn_layers;
    return first_layer;
  };
  const GdnState first = gdn(0);
  return {.checkpoint = all(first.checkpoint),
          .record_k = all(first.record_k),
          .record_v = all(first.record_v),
          .record_g = all(first.record_g),
          .record_beta = all(first.record_beta)};
}

View<5> StatePool::snapshots(int64_t layer) const { return snapshots_ ? snapshots_[layer] : View<5>(); }

View<3> StatePool::conv_ring(int64_t layer) const { return conv_[layer]; }

KvPages StatePool::pages_in(const View<4>& k, const View<4>& v) const {
  return {.k = k, .v = v, .table = table_.data(), .table_stride = plan_.pages, .seats = options_.seats};
}

KvPages StatePool::kv(int64_t layer) const { return pages_in(kv_[layer][0], kv_[layer][1]); }

KvPages StatePool::draft_kv(int64_t layer) const { return pages_in(draft_kv_[layer][0], draft_kv_[layer][1]); }

}  // namespace deltaring
