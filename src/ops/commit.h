// Acceptance where the cursors lie: one call a step moves those of all rows, and serves all layers, which share them.
#pragma once
#include <cstdint>

#include "ops/cursor.h"

namespace deltaring {

// For each row with a seat: {folded, first} becomes deltaring::commit({folded, first}, fold_to, kept), and fold_to what
// plan_fold then says, so that the arrays are the Rows of the next step. Where the backend does not compute on the
// host, a row whose numbers are impossible is left as it is.
struct CommitArgs {
  int32_t count = 0;              // B
  const int32_t* seat = nullptr;  // [B] -1: nothing of the row changes
  const int32_t* kept = nullptr;  // [B] acc >= 0: anchor and accepted drafts, 0 when the row is cancelled
  int64_t* first = nullptr;       // [B] pos
  int64_t* folded = nullptr;      // [B]
  int64_t* fold_to = nullptr;     // [B] where the verify left the checkpoint; folded <= fold_to <= first + kept
  int32_t* order = nullptr;       // [B] or null: becomes Rows::order, rows with most to do first, by their kind_of_work
  int64_t F = 8;                  // grain of plan_fold: 8 or 16
  FoldPolicy policy = FoldPolicy::grid;
};

// What the op does for row b, on every machine.
constexpr void move_cursor(const CommitArgs& a, int32_t b) {
  const Cursor moved = commit({.folded = a.folded[b], .pos = a.first[b]}, a.fold_to[b], a.kept[b]);
  a.first[b] = moved.pos, a.folded[b] = moved.folded, a.fold_to[b] = plan_fold(moved, a.F, a.policy);
}

// What a verify has to do before its window, the most first: a fold, more than eight records, some, none.
// Eight keys are a tile of the products that a GPU makes of them. Any numbers will do, for a row may be impossible.
constexpr int kKindsOfWork = 4;
constexpr int kind_of_work(const Cursor& at, int64_t fold_to) {
  const uint64_t records = static_cast<uint64_t>(at.pos) - static_cast<uint64_t>(at.folded);
  return fold_to > at.folded ? 0 : records > 8 ? 1 : records > 0 ? 2 : kKindsOfWork - 1;
}
// The next one of a row that has moved.
constexpr int kind_of_work(const CommitArgs& a, int32_t b) {
  return a.seat[b] < 0 ? kKindsOfWork - 1 : kind_of_work({.folded = a.folded[b], .pos = a.first[b]}, a.fold_to[b]);
}

// What the op does on the host, once the arguments have been checked.
void commit_rows(const CommitArgs& args);

// Throw Error(invalid_argument) naming the argument; check_pointers looks at nothing behind a pointer.
void check_pointers(const CommitArgs& args);
void check(const CommitArgs& args);

}  // namespace deltaring
