// A unit of work: some value heads of one key head of a row, their segments, and where their pieces lie in shared
// memory.
//
// Keys are numbered by their distance from the checkpoint: records 0..n-1, then the window n..n+T-1. A segment is a run
// of keys that is computed from one state; the state of the next segment is the rounded fold of this one. Whole grains
// of records are segments of their own whether they are stored or not, so no bit depends on the step that stores them.
#pragma once
#include <algorithm>

#include "backends/cuda/gdn/verify/config.h"
#include "backends/cuda/gdn/verify/params.h"
#include "ops/rows.h"

namespace deltaring::cuda {

// Coefficients of a segment, behind which the fragments lie: queries x keys for the outputs; with an update keys x keys
// for the corrections, and the keys transposed.
struct Coefficients {
  float key[8 * kKeyTiles];  // beta e^G / |k|
  float beta[8 * kKeyTiles];
  float query[8 * kQueryTiles];  // e^G scale / |q|
  float total;                   // e^G of the whole segment
  float pad[3];
};

struct alignas(16) Segment {
  int first, keys;     // its first key, and how many
  int query, queries;  // its first window token, and how many
  int update, store;   // is the state folded behind it, and stored?
  int window;          // its first window key, counted within it
  int block;           // bytes from a head's coefficients to the segment's

  constexpr int key_tiles() const { return (keys + 7) / 8; }
  constexpr int query_tiles() const { return (queries + 7) / 8; }
  // Bytes behind the block's start: of the fragment of key tile b for queries 8u and on, for the corrections of keys 8u
  // and on.
  constexpr int outputs(int b, int u) const {
    return static_cast<int>(sizeof(Coefficients)) + (b * query_tiles() + u) * kFragment;
  }
  constexpr int corrections(int b, int u) const { return outputs(key_tiles(), 0) + (b * key_tiles() + u) * kFragment; }
  constexpr int bytes() const { return update ? corrections(key_tiles(), 0) : outputs(key_tiles(), 0); }
};

// The room of a unit holds its keys, its queries, the coefficients of a batch of heads, one after the other, and the
// scratches in which they are prepared.
struct alignas(16) Unit {
  int32_t seat;  // counted over all layers; -1: zeros out, nothing else
  int32_t key_head;
  int32_t head, heads;   // its value heads
  int32_t token;         // of the row's first window token
  int32_t T, n;          // window tokens, keys before them
  int32_t records;       // of those n in the ring; what follows them is a token of the row already
  int32_t slot;          // of the first record
  int32_t segments;      // 0: nothing is read for it
  int32_t coefficients;  // bytes from the tokens to the first head's; and of one head's
  int32_t stride;
  int32_t folds;  // fold_to - folded
  int32_t batch;  // heads that are prepared at a time

  constexpr int keys() const { return n + T; }
  constexpr int queries() const { return keys() * kKeyPitch; }  // bytes from the tokens to the first query
  constexpr int scratches(int count) const { return (coefficients + count * stride + 15) & -16; }  // bytes up to them
};

// What a block's warps know of its work.
struct Header {
  Unit unit;
  Segment segments[kSegments];
};

// What the row arrays say of a row, before anything is made of it.
struct RawRow {
  int32_t start, end, seat;
  int64_t first, folded, fold_to;
  int32_t layer_at = 0;  // where the seats of its layer begin
};
// Row `index` of the launch: of all layers, one behind the other.
constexpr RawRow read_row(const VerifyParams& p, int index) {
  const int layer = index / p.rows, b = index - layer * p.rows;
  RawRow row{.seat = p.seat[b], .first = p.first[b], .folded = p.folded[b], .fold_to = p.fold_to[b]};
  row.layer_at = layer * p.seats;
  if (p.start) row.start = p.start[b], row.end = p.start[b + 1];
  return row;
}

// A row whose numbers are impossible, as check_verify, check_prefill and check(GdnFoldArgs) have it, loses its seat.
constexpr bool possible(const VerifyParams& p, const RawRow& row) {
  if (row.seat < 0 || row.seat >= p.seats || row.folded < 0 || row.first > kLastPosition) return false;
  if (row.folded > row.first) return false;
  const int64_t length = row.end - row.start, end = row.first + length;
  const bool together = end - row.folded <= p.R;  // records and tokens fit the ring side by side
  return row.folded <= row.fold_to && row.fold_to <= (p.prefill ? end : row.first) &&
         ((row.folded | row.fold_to) & ((1 << p.log2_F) - 1)) == 0 && length <= p.longest &&
         row.first - row.folded <= p.R && end - row.fold_to <= p.R &&
         (together || (p.prefill && row.fold_to >= row.first));
}

// A part of a row. It starts by folding the whole grains before it, up to fold_to, so that its keys are few; a prefill
// starts with a part of no tokens, -1, and ends with another.
constexpr RawRow part_of(const VerifyParams& p, const RawRow& row, int part) {
  if (row.start < 0 || row.start > row.end || row.end > p.tokens) return {.seat = -1};
  const int64_t length = row.end - row.start, from = int64_t{part} * p.part_tokens;
  const int64_t begin = std::max(int64_t{0}, std::min(from, length)),
                until = std::max(int64_t{0}, std::min(from + p.part_tokens, length));
  if (!possible(p, row)) {
    // The last part clears what a row has beyond the longest.
    return {.start = row.start + static_cast<int32_t>(begin),
            .end = part + 1 == p.parts ? row.end : row.start + static_cast<int32_t>(until),
            .seat = -1};
  }
  const auto checkpoint_at = [&](int64_t token) {
    const int64_t grid = (row.first + std::min(token, length)) & -(int64_t{1} << p.log2_F);
    return std::max(row.folded, std::min(row.fold_to, grid));
  };
  return {.start = row.start + static_cast<int32_t>(begin),
          .end = row.start + static_cast<int32_t>(until),
          .seat = row.seat,
          .first = row.first + begin,
          .folded = part == p.first_part ? row.folded : checkpoint_at(std::max(from - p.part_tokens, int64_t{0})),
          .fold_to = checkpoint_at(std::max(from, int64_t{0}))};
}

constexpr Unit unit_of(const VerifyParams& p, const RawRow& raw, int part, int key_head, int head, int heads) {
  const RawRow row = part_of(p, raw, part);
  return {.seat = row.seat < 0 ? row.seat : raw.layer_at + row.seat,
          .key_head = key_head,
          .head = head,
          .heads = heads,
          .token = row.start,
          .T = row.end - row.start,
          .n = static_cast<int32_t>(row.first - row.folded),
          .records = static_cast<int32_t>(std::max<int64_t>(raw.first - row.folded, 0)),
          .slot = static_cast<int32_t>(row.folded) & (p.R - 1),
          .folds = static_cast<int32_t>(row.fold_to - row.folded)};
}

// Cuts the unit into segments, which one thread writes down.
constexpr void cut(const VerifyParams& p, Unit& unit, Segment* segments, bool writer) {
  if (unit.seat < 0) return;
  const int F = 1 << p.log2_F, due = unit.n & -F, all = unit.keys();
  unit.coefficients = (all + unit.T) * kKeyPitch;
  for (int first = 0, end; first < (unit.T > 0 ? all : unit.folds); first = end) {
    const bool record = first < due;
    end = record || p.exact ? std::min((first & -F) + F, all) : all;
    const int window = std::max(first, unit.n);
    Segment s{.first = first, .keys = end - first, .query = window - unit.n, .queries = std::max(end - window, 0)};
    s.update = record || end < all, s.store = record && end == unit.folds;
    s.window = window - first, s.block = unit.stride;
    if (writer) segments[unit.segments] = s;
    unit.segments++, unit.stride += s.bytes();
  }
  const int together = unit.heads < kWarps ? unit.heads : kWarps, head = unit.stride + p.scratch;
  const int fit = head > 0 ? (p.room - unit.coefficients) / head : 1;
  unit.batch = fit < 1 ? 1 : fit < together ? fit : together;
}

// The ring slot of a key.
constexpr int slot_of(const VerifyParams& p, const Unit& unit, int key) { return (unit.slot + key) & (p.R - 1); }

// One instruction on a device, where the compiler would widen strides first.
constexpr int64_t wide_product(int32_t a, int32_t b) {
#ifdef __CUDA_ARCH__
  int64_t x;
  asm("mul.wide.s32 %0, %1, %2;" : "=l"(x) : "r"(a), "r"(b));
  return x;
#else
  return int64_t{a} * b;
#endif
}
constexpr int64_t ring_at(const Strides& s, const Unit& unit, int head, int slot) {
  return unit.seat * s.outer + wide_product(head, s.head) + wide_product(slot, s.row);
}
// Of an element of [tokens, heads, ...].
constexpr int64_t token_at(int token, int32_t token_stride, int head, int32_t head_stride) {
  return wide_product(token, token_stride) + wide_product(head, head_stride);
}

}  // namespace deltaring::cuda
