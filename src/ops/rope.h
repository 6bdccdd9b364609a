// Partial rotary embedding, half-split pairs inside the rotary dims: (d, d + rotary/2). For text the interleaved
// multi-axis form has three equal positions and is this one.
#pragma once
#include "base/view.h"
#include "ops/rows.h"

namespace deltaring {

// In place on the first `rotary` dims of every head; the others are untouched.
//   angle = position * theta^(-2i/rotary), i < rotary/2; x_i, x_{i+r/2} = x_i cos - x_{i+r/2} sin, x_{i+r/2} cos + x_i
//   sin
struct RopeArgs {
  Rows rows;       // positions; tokens of rows without a seat stay as they are
  View<3> x;       // [tokens, heads, D] f32, D contiguous
  int64_t rotary;  // even, <= D
  double theta;    // base of the frequencies; angles are computed in double, rotated in f32
};

void check(const RopeArgs& args);

}  // namespace deltaring
