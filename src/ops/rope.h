// Partial rotary embedding, half-split pairs inside the rotary dims: (d, d + rotary/2). For text the interleaved
// multi-axis form has three equal positions and is this one.
#pragma once
#include "base/view.h"
#include "ops/rows.h"

namespace deltaring {

// In place on the first `rotary` dims of every head; the others are untouched.
//   angle = position * frequency_i, i < rotary/2; c, s = amplitude cos(angle), amplitude sin(angle);
//   x_i, x_{i+r/2} = x_i c - x_{i+r/2} s, x_{i+r/2} c + x_i s
// Stretched contexts (YaRN) have frequencies and an amplitude of their own.
struct RopeArgs {
  Rows rows;                          // positions; tokens of rows without a seat stay as they are
  View<3> x;                          // [tokens, heads, D] f32, D contiguous
  int64_t rotary;                     // even, <= D
  double theta;                       // frequency_i = theta^(-2i/rotary); angles are computed in double, rotated in f32
  const double* frequency = nullptr;  // [rotary/2] instead of those of theta
  double amplitude = 1;
};

void check(const RopeArgs& args);

}  // namespace deltaring
