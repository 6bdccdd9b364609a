// Grids, and what became of a launch. No formatting here: kernels include it.
#pragma once
#include "backends/cuda/stream.h"

namespace deltaring::cuda {

// Throws Error(unsupported) naming the op when a grid holds no `blocks` blocks.
unsigned grid_of(const char* op, int64_t blocks);

// Throws Error(unsupported) naming the op when the last launch of this thread was refused.
void check_launch(const char* op);

struct LaunchShape {
  unsigned blocks;  // of the first dimension
  int threads;
  int shared = 0;      // bytes, dynamic
  bool early = false;  // may begin while the kernel before it ends (sm_90), for whose results it waits itself
  unsigned y = 1, z = 1;
};

void launch(const char* op, const void* kernel, const LaunchShape& shape, cudaStream_t stream, void** arguments);

// Throws Error(unsupported) naming the op when the launch is refused.
template <class... Args>
void launch(const char* op, void (*kernel)(Args...), const LaunchShape& shape, cudaStream_t stream,
            const Args&... args) {
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(&args))...};
  launch(op, reinterpret_cast<const void*>(kernel), shape, stream, arguments);
}

}  // namespace deltaring::cuda
