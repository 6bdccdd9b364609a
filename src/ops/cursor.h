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
  every,  // gdn_fold takes all records after each commit: any R >= T serves, no bit promise for 16-bit checkpoints
};

// Start-up constants of a ring: the rules below bind them together.
struct RingOptions {
  int64_t T = 4;  // tokens of the widest verify window, anchor included
  int64_t F = 8;  // fold grain: 8 or 16
  int64_t R = 0;  // ring rows
  FoldPolicy policy = FoldPolicy::grid;
};

// Smallest legal R: a power of two, >= 16 and <= 65536, >= T, and >= F-1+2T under grid (a verify starts with at most
// F-1+T records and appends T more before the fold it carries is committed).
constexpr int64_t default_ring_rows(int64_t T, int64_t F, FoldPolicy policy) {
  const int64_t need = policy == FoldPolicy::grid ? F - 1 + 2 * T : T;
  int64_t rows = 16;
  while (rows < need) rows *= 2;
  return rows;
}

// Rows of the conv ring beside a replay ring: a window, and taps-1 rows before every position that a rewind may reach.
constexpr int64_t conv_ring_rows(const RingOptions& o, int64_t taps) {
  const int64_t reach = o.policy == FoldPolicy::grid ? o.F - 1 : 0;
  int64_t rows = o.R;
  while (rows < taps - 1 + reach + o.T) rows *= 2;
  return rows;
}

// Position up to which records are due to be folded: under grid whole grains, so that result % F == 0, and the next
// verify carries the fold; under every all of them, and gdn_fold takes them right after the commit.
constexpr int64_t plan_fold(Cursor c, int64_t F, FoldPolicy policy) {
  return policy == FoldPolicy::grid ? c.pos - c.pos % F : c.pos;
}

// acc rows are kept: anchor + accepted drafts, or 0 when the row is cancelled. The fold that the verify carried has
// happened in either case, so folded moves even then: the tokens of the row are the same before and after.
constexpr Cursor commit(Cursor c, int64_t fold_to, int64_t acc) { return {.folded = fold_to, .pos = c.pos + acc}; }

// Throw Error(invalid_argument) naming the flag and a value that works. check_window: T in [1, 256], F 8 or 16;
// check_ring: that, and R as above.
void check_window(const RingOptions& options);
void check_ring(const RingOptions& options);

}  // namespace deltaring
