#include "backends/cuda/table.h"

#include <fmt/core.h>

#include "backends/cuda/gdn/recurrent/launch.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/ops.h"
#include "backends/cuda/stream.h"

namespace deltaring {

const OpTable& cuda_ops() {
  static const OpTable table{
      .name = "cuda",
      .memory = &cuda::device_memory(),
      .make_stream = [](int) -> std::unique_ptr<Stream> { return std::make_unique<cuda::CudaStream>(); },
      .wrap_stream = [](void* native) -> std::unique_ptr<Stream> {
        return std::make_unique<cuda::CudaStream>(static_cast<cudaStream_t>(native));
      },
      .conv = cuda::conv,
      .gdn_gates = cuda::gdn_gates,
      .gdn_verify = cuda::gdn_verify,
      .gdn_prefill = cuda::gdn_prefill,
      .gdn_fold = cuda::gdn_fold,
      .snapshot_verify = cuda::snapshot_verify,
      .snapshot_commit = cuda::snapshot_commit,
      .commit = cuda::commit,
      .seat_copy = cuda::seat_copy,
      .seat_pack = cuda::seat_pack,
      .seat_unpack = cuda::seat_unpack,
  };
  return table;
}

std::string cuda_missing() {
  int driver = 0, runtime = 0, devices = 0, device = 0;
  cudaDriverGetVersion(&driver), cudaRuntimeGetVersion(&runtime);
  const auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  if (driver == 0) return "no NVIDIA driver is installed";
  if (const cudaError_t status = cudaGetDeviceCount(&devices); status != cudaSuccess || devices == 0) {
    cudaGetLastError();
    return fmt::format("no GPU can be used: {} (driver for CUDA {}, this build has CUDA {})",
                       status == cudaSuccess ? "there is none" : cudaGetErrorString(status), version(driver),
                       version(runtime));
  }
  cudaDeviceProp properties{};
  if (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&properties, device) != cudaSuccess)
    return fmt::format("the GPU does not answer: {}", cudaGetErrorString(cudaGetLastError()));
  if (!cuda::code_runs_here()) {
    cudaGetLastError();
    return fmt::format(
        "this build has no code for {} of compute capability {}.{}; -DCMAKE_CUDA_ARCHITECTURES={}{} does",
        properties.name, properties.major, properties.minor, properties.major, properties.minor);
  }
  return {};
}

}  // namespace deltaring
