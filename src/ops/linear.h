// Products with a weight matrix, and what feeds on them. Row-invariant: the bits of out[m, :] depend on x[m, :] and w
// alone, whatever M is and however the work is split.
#pragma once
#include "base/view.h"

namespace deltaring {

// A weight matrix as its file keeps it. float8 elements are codes: with one scale for each block of 128 x 128 codes,
// the last blocks of a side smaller, element (n, k) is code(n, k) * scales(n / 128, k / 128), rounded to f32 by the
// cpu.
struct WeightMatrix {
  static constexpr int64_t kBlock = 128;

  View<2> values;  // [N, K] f32, bf16, f16 or f8_e4m3, K contiguous
  View<2> scales;  // with f8_e4m3: [ceil(N / 128), ceil(K / 128)] f32, bf16 or f16; else empty

  WeightMatrix() = default;
  WeightMatrix(const View<2>& v, const View<2>& s = {}) : values(v), scales(s) {}  // implicit: most need no scales

  int64_t N() const { return values.shape[0]; }
  int64_t K() const { return values.shape[1]; }
  static int64_t blocks(int64_t size) { return (size + kBlock - 1) / kBlock; }
  // Rows [first, first + count); with f8_e4m3, first is a multiple of kBlock.
  WeightMatrix rows(int64_t first, int64_t count) const {
    if (!scales) return values.rows(first, count);
    return {values.rows(first, count), scales.rows(first / kBlock, blocks(count))};
  }
};

// out[m, n] = sum_k x[m, k] w[n, k], accumulated in f32 in one fixed order; `accumulate` adds the sum to out instead.
struct LinearArgs {
  View<2> x;                // [M, K] f32
  WeightMatrix w;           // [N, K]
  View<2> out;              // [M, N] f32, N contiguous
  bool accumulate = false;  // residual form: out += x w^T
};

// out[i, :] = table[ids[i], :]. 0 <= ids[i] < rows of the table.
struct EmbeddingArgs {
  const int32_t* ids;  // [tokens]
  View<2> table;       // [vocab, H] f32, bf16 or f16
  View<2> out;         // [tokens, H] f32
};

// out = silu(gate) * up; out may alias either.
struct SwigluArgs {
  View<2> gate, up;  // [tokens, I] f32
  View<2> out;       // [tokens, I] f32
};

// Throws Error(invalid_argument) naming `name` unless w is [N, K] of a kind above.
void check_weight(const char* op, const char* name, const WeightMatrix& w, int64_t N, int64_t K);
void check(const LinearArgs& args);
void check(const EmbeddingArgs& args);
void check(const SwigluArgs& args);

}  // namespace deltaring
