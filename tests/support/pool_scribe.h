// Stands in for the ops where only the bytes matter: writes what a token leaves in a pool as a pattern of its value,
// and says whether a seat still holds what it should.
#pragma once
#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "state/pool.h"

namespace deltaring::test {

namespace detail {

inline uint32_t pattern(uint32_t value, uint32_t salt) {
  uint32_t h = (value + 0x9e3779b9u) * 0x85ebca6bu ^ (salt + 1) * 0xc2b2ae35u;
  h = (h ^ h >> 15) * 0x2c1b3c6du;
  return h ^ h >> 13;
}

// Words of two bytes, no two neighbours alike; rows are whole words.
inline void write(char* at, size_t bytes, uint32_t first) {
  for (size_t i = 0; i < bytes; i += 2, first += 40503) std::memcpy(at + i, &first, 2);
}
inline bool is_written(const char* at, size_t bytes, uint32_t first) {
  for (size_t i = 0; i < bytes; i += 2, first += 40503)
    if (std::memcmp(at + i, &first, 2) != 0) return false;
  return true;
}

// Calls each(address, bytes, salt); the salt tells the rows of a token from each other.
template <int N, class Each>
void rows_of(View<N> heads, int64_t row, uint32_t& salt, const Each& each) {
  for (int64_t h = 0; h < heads.shape[0]; h++) {
    int64_t elements = 1;
    for (int d = 2; d < N; d++) elements *= heads.shape[d];
    each(static_cast<char*>(heads.address(heads.offset(h, row))), elements * size_of(heads.dtype), salt++);
  }
}

}  // namespace detail

struct Parts {
  bool records = true, conv = true, kv = true;
};

// The rows of position p in a seat.
template <class Each>
void each_row_of_token(const StatePool& pool, int32_t seat, int64_t p, Parts parts, const Each& each) {
  const bool replay = pool.options().rollback == StateRollback::replay;
  for (int64_t l = 0; l < pool.shape().gdn_layers; l++) {
    uint32_t salt = static_cast<uint32_t>(l) * 64;
    if (replay && parts.records) {
      const GdnState s = pool.gdn(l);
      const int64_t slot = p % pool.options().ring.R;
      detail::rows_of(s.record_k[seat], slot, salt, each), detail::rows_of(s.record_v[seat], slot, salt, each);
      detail::rows_of(s.record_g[seat], slot, salt, each), detail::rows_of(s.record_beta[seat], slot, salt, each);
    }
    const View<1> conv = pool.conv_ring(l)[seat][p % pool.plan().conv_rows];
    if (parts.conv) each(static_cast<char*>(conv.data), static_cast<size_t>(conv.shape[0]) * 4, l * 64 + 60);
  }
  for (int64_t l = 0; l < pool.shape().kv_layers && parts.kv; l++) {
    uint32_t salt = static_cast<uint32_t>(4096 + l * 64);
    const KvPages kv = pool.kv(l);
    const int32_t page = kv.table[seat * kv.table_stride + p / pool.options().page_rows];
    detail::rows_of(kv.k[page], p % pool.options().page_rows, salt, each);
    detail::rows_of(kv.v[page], p % pool.options().page_rows, salt, each);
  }
}

inline void write_token(const StatePool& pool, int32_t seat, int64_t p, uint32_t value, Parts parts = {}) {
  each_row_of_token(pool, seat, p, parts, [value](char* at, size_t bytes, uint32_t salt) {
    detail::write(at, bytes, detail::pattern(value, salt));
  });
}

inline bool holds_token(const StatePool& pool, int32_t seat, int64_t p, uint32_t value, Parts parts) {
  bool same = true;
  each_row_of_token(pool, seat, p, parts, [&same, value](const char* at, size_t bytes, uint32_t salt) {
    same = same && detail::is_written(at, bytes, detail::pattern(value, salt));
  });
  return same;
}

// The state behind a prefix, as one value.
inline uint32_t state_value(std::span<const uint32_t> prefix) {
  uint32_t value = 1;
  for (const uint32_t token : prefix) value = detail::pattern(value, token);
  return prefix.empty() ? 0 : value;
}

template <class Each>
void each_state_row(const StatePool& pool, int32_t seat, const Each& each) {
  for (int64_t l = 0; l < pool.shape().gdn_layers; l++) {
    uint32_t salt = static_cast<uint32_t>(8192 + l * 64);
    const View<4> checkpoint = pool.gdn(l).checkpoint;
    for (int64_t v = 0; v < checkpoint.shape[2]; v++) detail::rows_of(checkpoint[seat], v, salt, each);
  }
}

inline void write_state(const StatePool& pool, int32_t seat, uint32_t value) {
  each_state_row(pool, seat, [value](char* at, size_t bytes, uint32_t salt) {
    value ? detail::write(at, bytes, detail::pattern(value, salt)) : void(std::memset(at, 0, bytes));
  });
}

inline bool holds_state(const StatePool& pool, int32_t seat, uint32_t value) {
  bool same = true;
  each_state_row(pool, seat, [&same, value](const char* at, size_t bytes, uint32_t salt) {
    same = same && (value ? detail::is_written(at, bytes, detail::pattern(value, salt))
                          : std::all_of(at, at + bytes, [](char c) { return c == 0; }));
  });
  return same;
}

// What a verify or a prefill does to a seat: rows of all tokens, the state when it folds. `log` holds the tokens before
// pos; the row's tokens are `row`, of which those in front of a fold are kept and the fold may lie among them.
inline void write_row(const StatePool& pool, int32_t seat, std::span<const uint32_t> log, std::span<const uint32_t> row,
                      int64_t fold_to) {
  const Cursor c = pool.cursor(seat);
  if (fold_to > c.folded) {
    std::vector<uint32_t> prefix(log.begin(), log.end());
    prefix.insert(prefix.end(), row.begin(), row.end());
    write_state(pool, seat, state_value(std::span(prefix).first(static_cast<size_t>(fold_to))));
  }
  const int64_t end = c.pos + static_cast<int64_t>(row.size());
  for (size_t i = 0; i < row.size(); i++) {
    const int64_t p = c.pos + static_cast<int64_t>(i);
    write_token(pool, seat, p, row[i], {.records = p >= fold_to, .conv = p >= end - pool.plan().conv_rows, .kv = true});
  }
}

// "" when the seat holds the state of `log`, all that a rewind may reach included; else what differs.
inline std::string difference(const StatePool& pool, int32_t seat, std::span<const uint32_t> log, int64_t taps) {
  const Cursor c = pool.cursor(seat);
  if (c.pos != static_cast<int64_t>(log.size())) return "pos is " + std::to_string(c.pos);
  if (!holds_state(pool, seat, state_value(log.first(static_cast<size_t>(c.folded))))) return "the checkpoint";
  for (int64_t p = 0; p < c.pos; p++) {
    const Parts parts{.records = p >= c.folded, .conv = p >= c.folded - (taps - 1), .kv = true};
    if (!holds_token(pool, seat, p, log[static_cast<size_t>(p)], parts)) return "position " + std::to_string(p);
  }
  return "";
}

}  // namespace deltaring::test
