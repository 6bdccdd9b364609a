// How a product is cut. Shared by all SIMD targets of linear-inl.h.
#pragma once
#include <cstdint>

#include "ops/linear.h"

namespace deltaring::cpu {

#ifndef KC
#define KC 512
#endif
constexpr int64_t kChunk = KC;  // elements of k behind one vector accumulator: part of the order of the sum
constexpr int64_t kRows = 64;    // rows of x in a task
constexpr int64_t kCols = 48;    // rows of w in a task

struct Product {
  LinearArgs args;
  float* x;  // [chunks of k, M, kChunk]: x in the order the kernel reads it
  int64_t M, N, K;

  float* packed(int64_t k0, int64_t m) const { return x + (k0 / kChunk * M + m) * kChunk; }
};

}  // namespace deltaring::cpu
