#include "backends/cuda/stream.h"

#include "backends/cuda/launch.h"
#include "base/error.h"

namespace deltaring::cuda {

namespace {

DeviceLimits limits_here() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const auto attribute = [device](cudaDeviceAttr which) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return value;
  };
  return {
      .capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor),
      .multiprocessors = attribute(cudaDevAttrMultiProcessorCount),
      .shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
      .shared_of_all = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor),
      .shared_reserved = attribute(cudaDevAttrReservedSharedMemoryPerBlock)};
}

}  // namespace

void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  const ErrorKind kind = status == cudaErrorMemoryAllocation ? ErrorKind::out_of_memory : ErrorKind::unsupported;
  const char* advice = "compute-sanitizer shows the kernel, and a new process is needed once a kernel has failed";
  if (status == cudaErrorMemoryAllocation) advice = "fewer seats or a smaller batch need less";
  if (status == cudaErrorNoKernelImageForDevice) advice = "build with -DCMAKE_CUDA_ARCHITECTURES=native";
  if (status == cudaErrorInvalidResourceHandle) advice = "the device of the stream must be the current one";
  fail(kind, "{}: {} ({}); {}", call, cudaGetErrorString(status), cudaGetErrorName(status), advice);
}

unsigned grid_of(const char* op, int64_t blocks) {
  constexpr int64_t kMost = 0x7fffffff;
  if (blocks > kMost)
    fail(ErrorKind::unsupported, "{}: {} blocks of work, a launch has at most {}; fewer rows a step work", op, blocks,
         kMost);
  return static_cast<unsigned>(blocks);
}

void check_launch(const char* op) { check_cuda(cudaGetLastError(), op); }

void launch(const char* op, const void* kernel, const LaunchShape& shape, cudaStream_t stream, void** arguments) {
  if (shape.shared > 0)
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared),
               "cudaFuncSetAttribute");
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = {shape.blocks, shape.y, shape.z}, config.blockDim = static_cast<unsigned>(shape.threads);
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared), config.stream = stream;
  config.attrs = &early, config.numAttrs = shape.early;
  const cudaError_t status = cudaLaunchKernelExC(&config, kernel, arguments);
  if (status != cudaSuccess) cudaGetLastError();  // told here, and to no later launch
  check_cuda(status, op);
}

CudaStream::CudaStream() : owned_(true), limits_(limits_here()) {
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

CudaStream::CudaStream(cudaStream_t foreign) : stream_(foreign), owned_(false), limits_(limits_here()) {}

CudaStream::~CudaStream() {
  if (owned_) cudaStreamDestroy(stream_);
}

}  // namespace deltaring::cuda
