// How a product is cut. Shared by the SIMD targets of linear-inl.h.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/linear.h"

namespace deltaring::cpu {

constexpr int64_t kChunk = 512;     // elements of k behind one vector accumulator: part of the order of the sum
constexpr int64_t kMaxRows = 64;    // rows of x in a task
constexpr int64_t kMaxCols = 48;    // rows of w in a task
constexpr int64_t kFewRows = 20;    // rows up to which weights are converted in flight, not into a panel first
constexpr int64_t kGroup = 12;      // columns that all rows pass through while they lie in the first-level cache
constexpr int64_t kCachedRows = 8;  // chunks of x that stay there meanwhile

static_assert(kChunk % WeightMatrix::kBlock == 0);  // so that a chunk begins with a block of scales

struct Product {
  LinearArgs args;
  int64_t M, N, K;
  int64_t rows;     // rows of x in a task: M spread evenly over as few tasks as kMaxRows allows
  float* packed_x;  // [chunks of k, M, kChunk], each step of k in the order the kernel reads it, zeros behind K

  int64_t row_tasks() const { return (M + rows - 1) / rows; }
  int64_t col_tasks() const { return (N + kMaxCols - 1) / kMaxCols; }
  int64_t packed_size() const { return (K + kChunk - 1) / kChunk * M * kChunk; }
  float* packed(int64_t k0, int64_t m) const { return packed_x + (k0 / kChunk * M + m) * kChunk; }
};

}  // namespace deltaring::cpu
