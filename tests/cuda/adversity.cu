#include <algorithm>

#include "backends/cuda/ptx.cuh"
#include "backends/cuda/stream.h"
#include "cuda/adversity.h"

namespace deltaring::cuda {

namespace {

struct Arrays {
  LateBytes each[kMostLate];
};

// About 100 us.
__device__ void linger() {
  for (const auto begin = clock64(); clock64() - begin < 200'000;) {
  }
}

__global__ void late_kernel(const Arrays arrays) {
  launch_dependents();
  linger();
  for (const LateBytes& array : arrays.each)
    for (size_t i = threadIdx.x; i < array.bytes; i += blockDim.x) array.to[i] = array.from[i];
}

// A block fills a multiprocessor, and stays until each has one.
__global__ void poison_kernel(int words) {
  extern __shared__ volatile unsigned all[];
  for (int i = static_cast<int>(threadIdx.x); i < words; i += static_cast<int>(blockDim.x)) all[i] = ~0u;
  linger();
}

int attribute(cudaDeviceAttr name) {
  int device = 0, value = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&value, name, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

void write_late(std::span<const LateBytes> arrays, cudaStream_t stream) {
  Arrays all{};
  std::ranges::copy(arrays, all.each);
  late_kernel<<<1, 256, 0, stream>>>(all);
  check_cuda(cudaGetLastError(), "late_kernel");
}

void poison_shared_memory(cudaStream_t stream) {
  const int bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  check_cuda(cudaFuncSetAttribute(poison_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "cudaFuncSetAttribute");
  poison_kernel<<<static_cast<unsigned>(attribute(cudaDevAttrMultiProcessorCount)), 1024, static_cast<size_t>(bytes),
                  stream>>>(bytes / 4);
  check_cuda(cudaGetLastError(), "poison_kernel");
}

}  // namespace deltaring::cuda
