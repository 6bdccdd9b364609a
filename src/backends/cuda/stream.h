// The cuda backend runs on a CUDA stream of the device that is current when it is made.
#pragma once
#include <cuda_runtime_api.h>

#include "backends/cuda/limits.h"
#include "ops/table.h"

namespace deltaring::cuda {

// Throws Error(unsupported) naming the call and what CUDA says of it, Error(out_of_memory) where that is the reason.
void check_cuda(cudaError_t status, const char* call);

class CudaStream final : public Stream {
 public:
  CudaStream();                               // one of its own, ordered behind nothing
  explicit CudaStream(cudaStream_t foreign);  // the caller's, which outlives this; null is CUDA's default stream
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const { return stream_; }
  const DeviceLimits& limits() const { return limits_; }

 private:
  cudaStream_t stream_ = nullptr;
  bool owned_;
  DeviceLimits limits_;
};

// The stream behind one that this backend made.
inline CudaStream& cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream); }

}  // namespace deltaring::cuda
