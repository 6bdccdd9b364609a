// Every piece of memory of a StatePool by name, to fill it, to compare it and to find it changed.
#pragma once
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "state/pool.h"

namespace deltaring::test {

// Extents that are all different, odd where they may be, so that a swapped pair shows.
inline StateShape small_shape() {
  return {.gdn_layers = 3,
          .Hk = 1,
          .Hv = 3,
          .K = 10,
          .V = 6,
          .G = 1,
          .conv_channels = 7,
          .taps = 4,
          .kv_layers = 2,
          .Hkv = 2,
          .D = 5};
}

inline StateOptions small_options() {
  return {.seats = 4,
          .kv_tokens = 100,
          .page_rows = 8,
          .ring = {.T = 4, .F = 8, .R = 16},
          .checkpoint = DType::bf16,
          .record = DType::f32,
          .kv = DType::f16};
}

// Calls each(address, bytes) for every contiguous row of the view.
using EachRow = std::function<void(char*, size_t)>;

inline void for_each_row(const View<1>& view, const EachRow& each) {
  const size_t element = size_of(view.dtype);
  if (view.stride[0] == 1 && view.shape[0] > 0)
    return each(static_cast<char*>(view.data), static_cast<size_t>(view.shape[0]) * element);
  for (int64_t i = 0; i < view.shape[0]; i++) each(static_cast<char*>(view.address(i * view.stride[0])), element);
}
template <int N>
void for_each_row(const View<N>& view, const EachRow& each) {
  for (int64_t i = 0; i < view.shape[0]; i++) for_each_row(view[i], each);
}

using Piece = std::function<void(const EachRow&)>;
using Pieces = std::map<std::string, Piece>;

template <int N>
Piece piece(const View<N>& view) {
  return [view](const EachRow& each) { for_each_row(view, each); };
}

// All state of a seat but its pages: checkpoints, records, conv rows, snapshots.
inline Pieces seat_pieces(const StatePool& pool, int64_t seat) {
  Pieces pieces;
  for (int64_t l = 0; l < pool.shape().gdn_layers; l++) {
    const std::string at = " of layer " + std::to_string(l) + " seat " + std::to_string(seat);
    const GdnState state = pool.gdn(l);
    pieces["checkpoint" + at] = piece(state.checkpoint[seat]);
    pieces["conv" + at] = piece(pool.conv_ring(l)[seat]);
    if (pool.snapshots(l)) pieces["snapshots" + at] = piece(pool.snapshots(l)[seat]);
    if (pool.options().rollback == StateRollback::snapshot) continue;
    pieces["record_k" + at] = piece(state.record_k[seat]);
    pieces["record_v" + at] = piece(state.record_v[seat]);
    pieces["record_g" + at] = piece(state.record_g[seat]);
    pieces["record_beta" + at] = piece(state.record_beta[seat]);
  }
  return pieces;
}

inline Pieces page_pieces(const StatePool& pool, int64_t page) {
  Pieces pieces;
  for (int64_t l = 0; l < pool.shape().kv_layers; l++) {
    const std::string at = " of layer " + std::to_string(l) + " page " + std::to_string(page);
    pieces["k" + at] = piece(pool.kv(l).k[page]);
    pieces["v" + at] = piece(pool.kv(l).v[page]);
  }
  return pieces;
}

inline Pieces all_pieces(const StatePool& pool) {
  Pieces pieces;
  for (int64_t page = 0; page < pool.plan().pages; page++) pieces.merge(page_pieces(pool, page));
  for (int64_t seat = 0; seat < pool.options().seats; seat++) pieces.merge(seat_pieces(pool, seat));
  return pieces;
}

inline void fill(const Piece& piece, int value) {
  piece([value](char* at, size_t bytes) { std::memset(at, value, bytes); });
}
inline void fill(const Pieces& pieces, int value) {
  for (const auto& [name, piece] : pieces) fill(piece, value);
}

inline bool holds(const Piece& piece, int value) {
  bool all = true;
  piece([&](char* at, size_t bytes) {
    all = all && std::all_of(at, at + bytes, [value](char c) { return c == static_cast<char>(value); });
  });
  return all;
}

// The pages of the first `tokens` positions of a seat.
inline std::vector<int32_t> pages_of(const StatePool& pool, int32_t seat, int64_t tokens) {
  const KvPages kv = pool.kv(0);
  const int64_t count = (tokens + pool.options().page_rows - 1) / pool.options().page_rows;
  return {kv.table + seat * kv.table_stride, kv.table + seat * kv.table_stride + count};
}

// Everything that a refused operation must leave as it is.
struct Picture {
  std::vector<char> bytes;
  std::vector<int64_t> counts;  // free seats and pages; of each seat its state, references, cursor
  friend bool operator==(const Picture&, const Picture&) = default;
  friend void PrintTo(const Picture& picture, std::ostream* out) {
    const std::string_view all(picture.bytes.data(), picture.bytes.size());
    *out << "bytes of hash " << std::hash<std::string_view>()(all) << ", counts";
    for (const int64_t count : picture.counts) *out << ' ' << count;
  }
};

inline Picture picture_of(const StatePool& pool) {
  Picture picture;
  for (const auto& [name, piece] : all_pieces(pool))
    piece([&](char* at, size_t bytes) { picture.bytes.insert(picture.bytes.end(), at, at + bytes); });
  picture.counts = {pool.free_seats(), pool.free_pages()};
  for (int32_t seat = 0; seat < pool.options().seats; seat++) {
    picture.counts.push_back(static_cast<int64_t>(pool.state_of(seat)));
    if (pool.state_of(seat) == SeatState::free) continue;
    const Cursor c = pool.cursor(seat);
    picture.counts.insert(picture.counts.end(), {c.folded, c.pos});
    if (pool.state_of(seat) == SeatState::cached) picture.counts.push_back(pool.references(seat));
    const int64_t used = pool.shape().kv_layers ? c.pos : 0;
    for (const int32_t page : pages_of(pool, seat, used)) picture.counts.push_back(page);
  }
  return picture;
}

}  // namespace deltaring::test
