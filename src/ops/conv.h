// Depthwise causal convolution over the last `taps` inputs of each channel, then SiLU. The ring keeps raw inputs, so a
// rejected token needs no undo: its row lies at or after pos and is overwritten.
#pragma once
#include "base/view.h"
#include "ops/rows.h"

namespace deltaring {

// out[t, c] = silu(sum_j weight[c, j] x[t - (taps-1) + j, c]), j ascending, in f32; inputs at negative positions are
// zeros (never read), those before the row come from the ring, the others from x. The input at position p is stored in
// slot p % Rc, of a row longer than the ring the last Rc inputs: exactly, whichever dtype the ring has. Rc >= taps - 1.
struct ConvArgs {
  Rows rows;       // folded, fold_to unused
  View<2> x;       // [tokens, C] f32, bf16 or f16
  View<2> weight;  // [C, taps] f32; tap taps-1 multiplies the current token
  View<3> ring;    // [seats, Rc, C] f32, or the dtype of x
  View<2> out;     // [tokens, C] f32, bf16 or f16
};

void check(const ConvArgs& args);

}  // namespace deltaring
