// The grouped dynamic causal convolution of DFlash 2: each row of a block mixes itself with the rows before it, by
// kernels that are partly the row's own.
#pragma once
#include <cstdint>

#include "base/view.h"
#include "ops/rows.h"

namespace deltaring {

enum class ConvSide : uint8_t { before = 0, behind = 1 };  // of the sublayer

//   out[t, c] = sum_{o < taps} (base[side, o, c] + dynamic[t, side, o, c / group]) x[t - o, c],  G = H / group
// where rows before the first of a block are zero: a block never reads another. `accumulate` adds to out instead.
struct DynamicConvArgs {
  Rows rows;          // the blocks; rows without a seat are computed too
  View<2> x;          // [tokens, H] f32
  const float* base;  // [2, taps, H]
  View<2> dynamic;    // [tokens, 2 taps G] f32
  int64_t taps, group;
  ConvSide side;
  bool accumulate = false;
  View<2> out;  // [tokens, H] f32, not x
};

void dynamic_conv(const DynamicConvArgs& args);

}  // namespace deltaring
