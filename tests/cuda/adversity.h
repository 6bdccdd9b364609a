// What a launch may find on the device, launched ahead of it.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

namespace deltaring::cuda {

// Device memory, both of it.
struct LateBytes {
  std::byte* to;
  const std::byte* from;
  size_t bytes;
};
constexpr size_t kMostLate = 8;

// A kernel that lets the next one begin, waits until that is there, and then writes what it reads.
void write_late(std::span<const LateBytes> arrays, cudaStream_t stream);

// All shared memory of the device becomes NaN.
void poison_shared_memory(cudaStream_t stream);

}  // namespace deltaring::cuda
