#include "backends/cuda/memory.h"

#include <fmt/core.h>

#include "backends/cuda/stream.h"

namespace deltaring::cuda {

namespace {

void* allocate(size_t bytes) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, bytes), fmt::format("cudaMalloc of {} bytes", bytes).c_str());
  return memory;
}

// Called where nothing may be thrown. What CUDA says here is of calls before, and it says it again.
void free(void* memory) { cudaFree(memory); }

// The default stream does not wait for streams of our own, so the device does.
void transfer(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check_cuda(cudaMemcpyAsync(to, from, bytes, kind, nullptr), "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

void write(void* to, const void* from, size_t bytes) { transfer(to, from, bytes, cudaMemcpyHostToDevice); }
void read(void* to, const void* from, size_t bytes) { transfer(to, from, bytes, cudaMemcpyDeviceToHost); }

void copy(void* to, const void* from, size_t width, size_t pitch, size_t rows, Stream& stream) {
  if (width == 0 || rows == 0) return;
  // A single piece has no pitch to keep.
  if (rows == 1) pitch = width;
  check_cuda(
      cudaMemcpy2DAsync(to, pitch, from, pitch, width, rows, cudaMemcpyDeviceToDevice, cuda_stream(stream).get()),
      "cudaMemcpy2DAsync");
}

void wait(Stream& stream) { check_cuda(cudaStreamSynchronize(cuda_stream(stream).get()), "cudaStreamSynchronize"); }

}  // namespace

const Memory& device_memory() {
  static constexpr Memory memory{
      .allocate = allocate, .free = free, .write = write, .read = read, .copy = copy, .wait = wait};
  return memory;
}

}  // namespace deltaring::cuda
