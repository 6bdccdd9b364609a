// The whole speculative state of a request: two integers. Everything stored per token (replay records, conv inputs, KV
// rows, drafter context) is an append-only log under them; a ring of R rows keeps position p in slot p % R.
//
//   [folded, pos)  accepted tokens whose records are not in the checkpoint yet, n = pos - folded
//   [pos, pos+T)   written by a verify; commit keeps a prefix by pos += acc, and nobody reads the rest
#pragma once
#include <cstdint>
#include <string>

namespace deltaring {

struct Cursor {
  int64_t folded = 0;  // tokens in the checkpoint; a multiple of the grain F under FoldPolicy::grid
  int64_t pos = 0;     // accepted tokens; equals the KV length
  friend bool operator==(const Cursor&, const Cursor&) = default;
};

enum class FoldPolicy {
  grid,   // checkpoints stand on multiples of F only: state and outputs are a function of the tokens alone
  every,  // all records are folded after each commit: any R >= T serves, no bit promise for 16-bit checkpoints
};

// Start-up constants of a ring: the rules below bind them together.
struct RingOptions {
  int64_t T = 4;  // tokens of the widest verify window, anchor included
  int64_t F = 8;  // fold grain: 8 or 16
  int64_t R = 0;  // ring rows
  FoldPolicy policy = FoldPolicy::grid;
};

// Smallest legal R: a power of two, >= 16, >= T, and >= F-1+2T under grid (a verify starts with at most F-1+T records
// and appends T more before the fold it carries is committed).
constexpr int64_t default_ring_rows(int64_t T, int64_t F, FoldPolicy policy) {
  const int64_t need = policy == FoldPolicy::grid ? F - 1 + 2 * T : T;
  int64_t rows = 16;
  while (rows < need) rows *= 2;
  return rows;
}

// Rows of a conv ring beside a replay ring of R rows: room for taps-1 rows before every position that a rewind may
// reach.
constexpr int64_t conv_ring_rows(int64_t T, int64_t R, int64_t taps) {
  int64_t rows = R;
  while (rows < taps - 1 + T) rows *= 2;
  return rows;
}

// Position the checkpoint moves to when the next verify starts: it folds records [folded, result), or none.
// folded <= result <= pos; under grid whole grains only, so result % F == 0.
constexpr int64_t plan_fold(Cursor c, int64_t F, FoldPolicy policy) {
  if (policy == FoldPolicy::every) return c.pos;
  return c.pos - c.pos % F;
}

// acc >= 1 rows are kept (anchor + accepted drafts), 0 leaves the row as it was. fold_to comes from plan_fold.
constexpr Cursor commit(Cursor c, int64_t fold_to, int64_t acc) {
  return acc == 0 ? c : Cursor{.folded = fold_to, .pos = c.pos + acc};
}

// Throws Error(invalid_argument) naming the flag and a value that works: T in [1, 256], F 8 or 16, R as above.
void check_ring(const RingOptions& options);

}  // namespace deltaring
