// The unit of work of the cpu attention: some queries of one row that share a kv head.
//
// One order of operations gives every query its bits, whatever the row, batch, tile or thread it is computed in:
//   - positions are cut at absolute multiples of kBlock, blocks at absolute multiples of kSplit;
//   - a dot product runs over ascending lanes of D with one accumulator vector, then sums its lanes as SumLanes4 does;
//   - each block is one step of an online softmax, its values are added position by position;
//   - each split starts from nothing, and splits are merged in ascending order.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/attention.h"

namespace deltaring::cpu {

constexpr int64_t kBlock = 64;           // positions of one softmax step
constexpr int64_t kSplit = 1024;         // positions of one partial result
constexpr int64_t kRegisterQueries = 4;  // queries computed together in registers
constexpr int64_t kTileQueries = 32;     // queries that share a converted block of keys and values

constexpr int64_t kRowGap = 16;  // floats between the rows of a copied block, so that columns do not share cache sets

// Query m is head m % group of the group, of token m / group of the tile. So positions ascend with m, and with them
// both ends of what is visible.
struct QueryTile {
  int32_t row;
  int64_t kv_head, group;
  int64_t first_token, tokens;  // in the packed token list
  int64_t first_position;
  int64_t window;   // as in AttentionArgs
  int64_t row_end;  // the position behind the row with whole_row, else 0

  int64_t queries() const { return group * tokens; }
  int64_t padded_queries() const { return (queries() + kRegisterQueries - 1) / kRegisterQueries * kRegisterQueries; }
  // The queries that pad the tile stand where the last one does.
  int64_t position(int64_t m) const { return first_position + (m < queries() ? m / group : tokens - 1); }
  // Query m sees positions [visible_begin, visible_end).
  int64_t visible_begin(int64_t m) const { return window > 0 ? std::max<int64_t>(0, position(m) - window + 1) : 0; }
  int64_t visible_end(int64_t m) const { return row_end > 0 ? row_end : position(m) + 1; }
  int64_t begin() const { return visible_begin(0) / kBlock * kBlock; }
  int64_t end() const { return visible_end(queries() - 1); }
  // Splits [first_split, last_split).
  int64_t first_split() const { return visible_begin(0) / kSplit; }
  int64_t last_split() const { return (end() + kSplit - 1) / kSplit; }
  // Floats of scratch for one split: the scaled queries, and a block of keys and values in float.
  int64_t scratch_size(int64_t dim) const { return padded_queries() * dim + 2 * kBlock * (dim + kRowGap); }
};

// Unfinished softmax of a tile's padded queries: sum of e^(score - max) and of e^(score - max) v.
struct Partial {
  float* max;  // [queries]
  float* sum;  // [queries]
  float* out;  // [queries, dim], dim = D rounded up as the kernels want it

  // Whole cache lines, so that what lies behind is aligned for any vector.
  static int64_t size(int64_t queries, int64_t dim) { return (queries * (dim + 2) + 15) / 16 * 16; }
  Partial(float* data, int64_t queries, int64_t dim)
      : max(data + queries * dim), sum(data + queries * (dim + 1)), out(data) {}
};

}  // namespace deltaring::cpu
