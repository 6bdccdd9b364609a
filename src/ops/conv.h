// Depthwise causal convolution over the last `taps` inputs of each channel, then SiLU. The ring keeps raw inputs, so a
// rejected token needs no undo: its row lies at or after pos and is overwritten.
#pragma once
#include "base/view.h"
#include "ops/rows.h"

namespace deltaring {

// out[t, c] = silu(sum_j weight[c, j] x[t - (taps-1) + j, c]), j ascending; inputs at negative positions are zeros
// (never read), those before the row come from the ring, the others from x. The input at position p is stored in slot
// p % Rc, of a row longer than the ring the last Rc inputs. Rc >= taps - 1.
struct ConvArgs {
  Rows rows;       // folded, fold_to unused
  View<2> x;       // [tokens, C] f32
  View<2> weight;  // [C, taps] f32; tap taps-1 multiplies the current token
  View<3> ring;    // [seats, Rc, C] f32
  View<2> out;     // [tokens, C] f32
};

void check(const ConvArgs& args);

}  // namespace deltaring
