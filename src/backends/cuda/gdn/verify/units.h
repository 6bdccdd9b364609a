// A unit of work: some value heads of one key head of a row, their segments, and where their pieces lie in shared
// memory.
//
// Keys are numbered by their distance from the checkpoint: records 0..n-1, then the window n..n+T-1. A segment is a run
// of keys that is computed from one state; the state of the next segment is the rounded fold of this one. Whole grains
// of records are segments of their own whether they are stored or not, so no bit depends on the step that stores them.
// Off the grid, where no bits are promised, only what is stored is cut, into as many keys as a fold takes.
#pragma once

#include "backends/cuda/gdn/verify/config.h"
#include "backends/cuda/gdn/verify/params.h"
#include "ops/rows.h"

namespace deltaring::cuda {

// Coefficients of a segment, behind which tiles of numbers lie: queries x keys for the outputs; with an update keys x
// keys for the corrections.
struct Coefficients {
  float key[8 * kKeyTiles];  // beta e^G / |k|
  float beta[8 * kKeyTiles];
  float query[8 * kQueryTiles];  // e^G scale / |q|
  float total;                   // e^G of the whole segment
  float pad[3];
};

// Of a unit's tokens.
struct Norms {
  float r[kMostRecords];     // 1 / |k|
  float q[8 * kQueryTiles];  // scale / |q|
};

// By value: those of the standard library take addresses, and a device then has a stack.
constexpr int least(int a, int b) { return a < b ? a : b; }
constexpr int most(int a, int b) { return a < b ? b : a; }

constexpr int triangle(int tiles) { return tiles * (tiles + 1) / 2; }

// Small, for warps read it whole, time and again.
struct alignas(16) Segment {
  uint16_t keys_at, queries_at;  // bytes from the room to its first key, and to its first query
  uint16_t block;                // bytes from a head's coefficients to the segment's
  uint16_t products;             // bytes from the room to the dot products of its keys and queries with its keys
  uint8_t first, keys;           // its first key, and how many
  uint8_t query, queries;        // its first window token, and how many
  uint8_t window;                // its first window key, counted within it
  uint8_t slot;                  // of its first key
  bool update, store;            // is the state folded behind it, and stored?

  // Of its first key; even, for norms are read by pairs.
  constexpr int norms_at() const { return (first + 1) & ~1; }
  constexpr int key_tiles() const { return (keys + 7) / 8; }
  constexpr int query_tiles() const { return (queries + 7) / 8; }
  // Bytes behind the block's start: of the tile of keys 8b and on for queries 8u and on, for the corrections of keys 8u
  // and on.
  static constexpr int outputs(int b, int u, int query_tiles) {
    return static_cast<int>(sizeof(Coefficients)) + (b * query_tiles + u) * kNumberTile;
  }
  static constexpr int corrections(int b, int u, int key_tiles, int query_tiles) {
    return outputs(key_tiles, b * key_tiles + u, query_tiles);
  }
  constexpr int bytes() const { return outputs(key_tiles(), update ? key_tiles() * key_tiles() : 0, query_tiles()); }
  // Which tile of products: of keys 8a and on with keys 8b and on (b <= a), of queries 8u and on with those.
  static constexpr int of_keys(int a, int b) { return triangle(a) + b; }
  constexpr int of_queries(int u, int b) const { return triangle(key_tiles()) + u * key_tiles() + b; }
  // Products that warps share, as prepare::multiply goes through them: of two tiles of rows at a time with a tile of
  // keys, of a tile of queries with itself.
  constexpr int jobs() const {
    const int kt = key_tiles(), qt = query_tiles();
    int count = qt;
    for (int b = 0; b < kt + qt; b += 2) count += least(b + 2, kt);
    return count;
  }
  constexpr int products_bytes() const { return of_queries(query_tiles(), 0) * kNumberTile; }
};
static_assert(sizeof(Segment) == 16);
// A unit's keys and queries, and behind them the dot products of its segments, fit the offsets: eight keys each, or
// sixteen, and a last one of the most.
static_assert((kMostRecords + 16 * kQueryTiles) * kKeyPitch + (kSegments - 1) * 4 * kNumberTile + 18 * kNumberTile <
              65536);

// The room of a unit holds its keys, its queries, norms and dot products; then the coefficients of a batch of heads,
// one after the other, and the scratches in which they are prepared.
struct Unit {
  int32_t seat;  // counted over all layers; -1: zeros out, nothing else
  int32_t key_head;
  int32_t head, heads;   // its value heads
  int32_t token;         // of the row's first window token
  int32_t T, n;          // window tokens, keys before them
  int32_t records;       // of those n in the ring; what follows them is a token of the row already
  int32_t slot;          // of the first record
  int32_t opening;       // keys of the first segment; 0: nothing is read for the unit
  int32_t segments;      // once it has been cut, as what follows
  uint32_t jobs;         // of dot products, that warps share
  int32_t coefficients;  // bytes from the room to the first head's; and of one head's
  int32_t stride;
  int32_t folds;  // fold_to - folded
  int32_t batch;  // heads that are prepared at a time, and bytes of the scratch of each
  int32_t scratch;
  int32_t crowded;  // do the scratches lie where v is, which is then fetched again for the first of a batch?

  constexpr int keys() const { return n + T; }
  constexpr int queries() const { return keys() * kKeyPitch; }      // bytes from the room to the first query
  constexpr int norms() const { return (keys() + T) * kKeyPitch; }  // and to the norms
  constexpr int scratches(int count) const { return coefficients + count * stride; }
  constexpr int end(int count) const { return scratches(count) + count * scratch; }
};

// What a block takes: value heads of a key head of the row whose turn it is.
struct Share {
  int32_t turn, key_head, head, heads;
};
// Of block (x, y): rows as they come, p.heads at a time; those from p.whole on one head at a time, p.heads times as
// many y.
constexpr Share share_of(const VerifyParams& p, int x, int y) {
  const int key_head = p.shares == 1 ? x : x / p.shares, first = (x - key_head * p.shares) * p.heads,
            heads = least(p.heads, p.group - first), head = key_head * p.group + first;
  if (y < p.whole) return {.turn = y, .key_head = key_head, .head = head, .heads = heads};
  const int row = (y - p.whole) / p.heads, single = y - p.whole - row * p.heads;
  if (single >= heads) return {.turn = -1};
  return {.turn = p.whole + row, .key_head = key_head, .head = head + single, .heads = 1};
}

// A row as it was read, before anything is made of it.
struct RawRow {
  int32_t start = 0, end = 0, seat = -1;
  int32_t index = 0;  // its place in the arrays: what `order` says, or the turn
  int64_t first = 0, folded = 0, fold_to = 0;
  int32_t turn = 0, layer_at = 0;  // whose turn it is; where the seats of its layer begin
};
// Not by way of the first-level cache, which would keep what was read ahead of its time.
template <class T>
constexpr T load_latest(const T* at) {
#ifdef __CUDA_ARCH__
  return __ldcg(at);
#else
  return *at;
#endif
}

// The row whose turn it is, for a layer.
constexpr RawRow read_row(const VerifyParams& p, int layer, int turn) {
  const int b = p.order && turn >= 0 ? load_latest(p.order + turn) : turn;
  RawRow row{.index = b, .turn = turn, .layer_at = layer * p.seats};
  if (b < 0 || b >= p.rows) return row;
  row.seat = load_latest(p.seat + b), row.first = load_latest(p.first + b);
  row.folded = load_latest(p.folded + b), row.fold_to = load_latest(p.fold_to + b);
  if (p.start) row.start = load_latest(p.start + b), row.end = load_latest(p.start + b + 1);
  return row;
}

// A row with positions counted from its checkpoint. One whose numbers are impossible, as check_verify, check_prefill
// and check(GdnFoldArgs) have it, has no seat, and one whose tokens are nowhere has none.
struct RelativeRow {
  int32_t seat = -1, start = 0, length = 0;
  int32_t n = 0, fold = 0;  // records, fold_to
  int32_t slot = 0;         // of the first record
};
constexpr RelativeRow relative(const VerifyParams& p, const RawRow& row) {
  constexpr int32_t kMost = 1 << 30;  // tokens of a row that can be counted with
  const int32_t grain = p.on_grid ? (1 << p.log2_F) - 1 : 0;
  if (row.start < 0 || row.start > row.end || row.end > p.tokens) return {};
  RelativeRow x{.start = row.start, .length = row.end - row.start};
  // As unsigned numbers, which a position before the checkpoint makes large.
  const uint64_t records = static_cast<uint64_t>(row.first) - static_cast<uint64_t>(row.folded),
                 folds = static_cast<uint64_t>(row.fold_to) - static_cast<uint64_t>(row.folded);
  const bool seated = (row.seat >= 0) & (row.seat < p.seats) & (x.length <= least(p.longest, kMost));
  if (!seated | (row.folded < 0) | (row.first > kLastPosition) | (records > kMostRecords) | (folds > kMost)) return x;
  const auto n = static_cast<int32_t>(records), fold = static_cast<int32_t>(folds), end = n + x.length;
  const bool together = end <= p.R;  // records and tokens fit the ring side by side
  if ((n > p.R) | (fold > (p.prefill ? end : n)) | ((row.folded & grain) != 0) | ((fold & grain) != 0) |
      (end - fold > p.R) | !(together | (p.prefill & (fold >= n))))
    return x;
  x.seat = row.layer_at + row.seat, x.n = n, x.fold = fold, x.slot = static_cast<int32_t>(row.folded) & (p.R - 1);
  return x;
}

// Where v of a unit's keys comes from, for its first value head. Small as a segment is, for the same reason.
struct alignas(16) Values {
  uint16_t* ring;          // slot 0
  const uint16_t* tokens;  // as if key 0 were one
  int32_t records, slot;   // as the unit has them
  int32_t opening, heads;
};

// What a block's warps know of its work; pointers are of the unit's first value head.
struct Header {
  Values values;
  Segment segments[kSegments];
  Unit unit;
  RawRow raw;
  RelativeRow row;
  int32_t part;  // of the row, the next one
  bool stands;   // is the row of a unit that was begun ahead of its time still the same?
  char *state, *out;
};

// The ring slot of a key.
constexpr int slot_of(const VerifyParams& p, const Unit& unit, int key) { return (unit.slot + key) & (p.R - 1); }

// The keys whose state is folded behind their segments, whatever the window.
constexpr int due_of(const VerifyParams& p, const Unit& unit) {
  return p.on_grid ? unit.n & -(1 << p.log2_F) : unit.folds;
}

// The key behind the segment that begins with `first`.
constexpr int end_of_segment(const VerifyParams& p, const Unit& unit, int first) {
  const int F = 1 << p.log2_F, all = unit.keys(), due = due_of(p, unit);
  if (first < due) return least((first & -F) + F, due);
  return p.exact ? least((first & -F) + F, all) : all;
}

// The keys of the first segment; 0: nothing is read for the unit.
constexpr int opening_of(const VerifyParams& p, const Unit& unit) {
  return unit.T > 0 || unit.folds > 0 ? end_of_segment(p, unit, 0) : 0;
}

// A part of a row. It starts by folding the whole grains before it, up to fold_to, so that its keys are few; a prefill
// starts with a part of no tokens, -1, and ends with another.
constexpr Unit unit_of(const VerifyParams& p, const RelativeRow& row, int part, int key_head, int head, int heads) {
  if (p.parts - p.first_part == 1) {  // all of it
    Unit all{.seat = row.seat,
             .key_head = key_head,
             .head = head,
             .heads = heads,
             .token = row.start,
             .T = row.length,
             .n = row.n,
             .records = row.n,
             .slot = row.slot,
             .folds = row.fold};
    if (row.seat >= 0) all.opening = opening_of(p, all);
    return all;
  }
  const int from = part * p.part_tokens, begin = most(0, least(from, row.length)),
            until = most(0, least(from + p.part_tokens, row.length));
  Unit unit{.seat = row.seat, .key_head = key_head, .head = head, .heads = heads, .token = row.start + begin};
  unit.T = until - begin;
  if (row.seat < 0) {
    // The last part clears what a row has beyond the longest.
    if (part + 1 == p.parts) unit.T = row.length - begin;
    return unit;
  }
  const auto checkpoint_at = [&](int token) {
    const int grid = (row.n + least(most(token, 0), row.length)) & -(1 << p.log2_F);
    return least(row.fold, grid);
  };
  const int folded = part == p.first_part ? 0 : checkpoint_at(from - p.part_tokens);
  unit.n = row.n + begin - folded, unit.records = most(row.n - folded, 0);
  unit.slot = (row.slot + folded) & (p.R - 1), unit.folds = checkpoint_at(from) - folded;
  unit.opening = opening_of(p, unit);
  return unit;
}

// Cuts the unit into segments and gives everything its place.
constexpr void cut(const VerifyParams& p, Unit& unit, Segment* segments) {
  if (unit.opening == 0) return;
  const int due = due_of(p, unit), all = unit.keys();
  unit.coefficients = unit.norms() + static_cast<int>(sizeof(Norms));
  for (int first = 0, end; first < (unit.T > 0 ? all : unit.folds); first = end) {
    const bool record = first < due;
    end = end_of_segment(p, unit, first);
    const int window = most(first, unit.n);
    const auto byte = [](int x) { return static_cast<uint8_t>(x); };
    const auto offset = [](int bytes) { return static_cast<uint16_t>(bytes); };
    const int query = window - unit.n;
    const Segment s{.keys_at = offset(first * kKeyPitch),
                    .queries_at = offset(unit.queries() + query * kKeyPitch),
                    .block = offset(unit.stride),
                    .products = offset(unit.coefficients),
                    .first = byte(first),
                    .keys = byte(end - first),
                    .query = byte(query),
                    .queries = byte(most(end - window, 0)),
                    .window = byte(window - first),
                    .slot = byte(slot_of(p, unit, first)),
                    .update = record || end < all,
                    .store = record && end == unit.folds};
    segments[unit.segments++] = s;
    unit.stride += s.bytes(), unit.coefficients += s.products_bytes(), unit.jobs += s.jobs();
    unit.scratch = most(unit.scratch, kScratchHead + triangle(s.key_tiles()) * kNumberTile);
  }
  const int together = unit.heads < kWarps ? unit.heads : kWarps;
  if (unit.segments == 0) return;
  const int room = p.room - unit.coefficients, each = unit.stride + unit.scratch;
  unit.batch = together;
  if (together * each <= room) return;
  const int fit = room / each;
  unit.batch = fit;
  const int blocks = room / unit.stride, scratches = kWarps * p.values / unit.scratch;
  const int crowded = least(least(blocks, scratches), together);
  if (crowded > fit) unit.crowded = true, unit.batch = crowded;
}

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
