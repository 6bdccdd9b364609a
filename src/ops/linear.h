// Products with a weight matrix, and what feeds on them. Row-invariant: the bits of out[m, :] depend on x[m, :] and w
// alone, whatever M is and however the work is split.
#pragma once
#include "base/view.h"

namespace deltaring {

// out[m, n] = sum_k x[m, k] w[n, k], accumulated in f32 in one fixed order; `accumulate` adds the sum to out instead.
struct LinearArgs {
  View<2> x;                // [M, K] f32
  View<2> w;                // [N, K] f32, bf16 or f16, K contiguous
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

void check(const LinearArgs& args);
void check(const EmbeddingArgs& args);
void check(const SwigluArgs& args);

}  // namespace deltaring
