// Qwen3-Next's order of the rows of its GDN projections, and the way out of it.
#pragma once
#include "model/weights.h"

namespace deltaring {

// Copies the rows of in_proj_qkvz and in_proj_ba of every GDN layer into in_proj_qkv, z, b and a, in memory that
// weights.reordered owns. Throws Error(unsupported) for float8 rows whose blocks of scales span heads.
void deinterleave_gdn(Weights& weights);

}  // namespace deltaring
