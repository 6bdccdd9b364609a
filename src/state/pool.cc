#include "state/pool.h"

#include <cstring>

#include "base/error.h"

namespace deltaring {

StatePool::StatePool(const StateShape& shape, const StateOptions& options)
    : shape_(shape),
      options_(options),
      plan_(plan_state(shape, options)),
      arena_(static_cast<size_t>(plan_.total), "state of all requests") {
  const auto& [L, Hk, Hv, K, V, C, taps, kv_layers, Hkv, D] = shape_;
  const int64_t seats = options_.seats, R = options_.ring.R;
  checkpoint_ = take<5>(options_.checkpoint, {L, seats, Hv, V, K});
  record_k_ = take<5>(options_.record, {L, seats, Hk, R, K});
  record_v_ = take<5>(options_.record, {L, seats, Hv, R, V});
  record_g_ = take<4>(DType::f32, {L, seats, Hv, R});
  record_beta_ = take<4>(DType::f32, {L, seats, Hv, R});
  conv_ = take<4>(DType::f32, {L, seats, plan_.conv_rows, C});
  kv_ = take<6>(options_.kv, {kv_layers, 2, plan_.pages, Hkv, options_.page_rows, D});
  cursors_.resize(seats);
  taken_.resize(seats);
  used_pages_.resize(seats);
  table_.resize(seats * plan_.pages);
  for (int64_t seat = seats; seat-- > 0;) free_seats_.push_back(static_cast<int32_t>(seat));
  for (int64_t page = plan_.pages; page-- > 0;) free_pages_.push_back(static_cast<int32_t>(page));
}

template <int N>
View<N> StatePool::take(DType dtype, std::array<int64_t, N> shape) {
  size_t bytes = size_of(dtype);
  for (int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  return dense<N>(arena_.take(bytes), dtype, shape);
}

int32_t StatePool::allocate() {
  if (free_seats_.empty()) return -1;
  const int32_t seat = free_seats_.back();
  free_seats_.pop_back();
  taken_[seat] = 1;
  cursors_[seat] = {};
  // Records, conv rows and KV before the cursor are never read, so only the checkpoint needs its zeros.
  for (int64_t layer = 0; layer < shape_.gdn_layers; layer++) {
    std::memset(checkpoint_[layer][seat].data, 0, static_cast<size_t>(plan_.checkpoint_per_seat / shape_.gdn_layers));
  }
  return seat;
}

void StatePool::check_taken(int32_t seat) const {
  check(seat >= 0 && seat < options_.seats && taken_[seat], "seat {} is not taken; seats are [0, {})", seat,
        options_.seats);
}

void StatePool::free(int32_t seat) {
  check_taken(seat);
  for (int64_t i = used_pages_[seat]; i-- > 0;) free_pages_.push_back(table_[seat * plan_.pages + i]);
  used_pages_[seat] = 0;
  taken_[seat] = 0;
  free_seats_.push_back(seat);
}

bool StatePool::reserve(int32_t seat, int64_t tokens) {
  check_taken(seat);
  const int64_t want = (tokens + options_.page_rows - 1) / options_.page_rows;
  int64_t& used = used_pages_[seat];
  if (want - used > free_pages()) return false;
  for (; used < want; used++) {
    table_[seat * plan_.pages + used] = free_pages_.back();
    free_pages_.pop_back();
  }
  return true;
}

void StatePool::rewind(int32_t seat, int64_t pos) {
  check_taken(seat);
  Cursor& c = cursors_[seat];
  check(pos >= c.folded && pos <= c.pos, "seat {}: cannot rewind to {}; records reach back over [{}, {}], {} works",
        seat, pos, c.folded, c.pos, c.folded);
  c.pos = pos;
}

GdnState StatePool::gdn(int64_t layer) const {
  return {.checkpoint = checkpoint_[layer],
          .record_k = record_k_[layer],
          .record_v = record_v_[layer],
          .record_g = record_g_[layer],
          .record_beta = record_beta_[layer]};
}

View<3> StatePool::conv_ring(int64_t layer) const { return conv_[layer]; }

KvPages StatePool::kv(int64_t layer) const {
  return {.k = kv_[layer][0],
          .v = kv_[layer][1],
          .table = table_.data(),
          .table_stride = plan_.pages,
          .seats = options_.seats};
}

}  // namespace deltaring
