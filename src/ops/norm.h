// Root-mean-square norms over the last dimension: y = x / sqrt(mean(x^2) + eps) * w.
#pragma once
#include "base/view.h"

namespace deltaring {

// Zero-centred weights (all norms of the family but the gated one) multiply by 1 + w, computed in f32.
// [rows, groups, D]: a plain norm has one group; q and k norms have one group per head. out may alias x.
struct RmsNormArgs {
  View<3> x;       // [rows, groups, D] f32, D contiguous
  const float* w;  // [D]
  float eps;
  bool zero_centred;
  View<3> out;  // [rows, groups, D] f32, D contiguous
};

// The norm behind a GDN layer: out = (x / sqrt(mean(x^2) + eps) * w) * silu(z). Plain w; norm first, gate last.
struct GatedRmsNormArgs {
  View<3> x, z;    // [tokens, Hv, V] f32
  const float* w;  // [V]
  float eps;
  View<3> out;  // [tokens, Hv, V] f32; may alias x
};

void check(const RmsNormArgs& args);
void check(const GatedRmsNormArgs& args);

}  // namespace deltaring
