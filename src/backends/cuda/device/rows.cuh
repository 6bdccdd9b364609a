// Rows as kernels see them. The host cannot look into the arrays, so what check() asks of them there is asked here: a
// row whose numbers are impossible is one without a seat, and one whose tokens are nowhere has none.
#pragma once
#include "backends/cuda/rows.h"

namespace deltaring::cuda {

struct Row {
  int32_t seat = -1;
  int32_t begin = 0, length = 0;  // its tokens
  int64_t first = 0, folded = 0, fold_to = 0;

  __device__ int64_t end() const { return first + length; }
};

// folded, first and fold_to against the ring and the grid, as check_verify, check_prefill and check(GdnFoldArgs) have
// them.
__device__ inline bool possible(const Row& row, const RowRules& rules) {
  const int64_t latest = rules.op == RowOp::prefill ? row.end() : row.first, grain = rules.grain;
  if (row.folded < 0 || row.folded > row.first || row.fold_to < row.folded || row.fold_to > latest) return false;
  if (row.first - row.folded > rules.R) return false;
  if (grain != 0 && ((row.folded | row.fold_to) & (grain - 1)) != 0) return false;
  if (rules.op == RowOp::fold) return true;
  const bool together = row.end() - row.folded <= rules.R;
  if (rules.op == RowOp::verify) return together;
  return row.end() - row.fold_to <= rules.R && (row.fold_to >= row.first || together);
}

// All that an op reads of a row is asked for before any of it is looked at: that is one way to memory, not four.
__device__ inline Row row_of(const Rows& rows, const RowRules& rules, int32_t b) {
  const bool tokens = rules.op != RowOp::fold, folds = rules.op > RowOp::tokens;
  const int32_t begin = tokens ? rows.start[b] : 0, end = tokens ? rows.start[b + 1] : 0, seat = rows.seat[b];
  const int64_t first = rows.first[b], folded = folds ? rows.folded[b] : 0, fold_to = folds ? rows.fold_to[b] : 0;
  Row row;
  if (begin < 0 || begin > end || end > rules.tokens) return row;
  row.begin = begin, row.length = end - begin;
  if (seat < 0 || seat >= rules.seats || row.length > rules.longest) return row;
  if (first < 0 || first > kLastPosition) return row;
  row.first = first, row.folded = folded, row.fold_to = fold_to;
  if (folds && !possible(row, rules)) return row;
  row.seat = seat;
  return row;
}

}  // namespace deltaring::cuda
