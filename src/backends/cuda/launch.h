// Grids of one dimension, and what became of a launch. No formatting here: kernels include it.
#pragma once
#include "backends/cuda/stream.h"

namespace deltaring::cuda {

// Throws Error(unsupported) naming the op when a grid holds no `blocks` blocks.
unsigned grid_of(const char* op, int64_t blocks);

// Throws Error(unsupported) naming the op when the last launch of this thread was refused.
void check_launch(const char* op);

}  // namespace deltaring::cuda
