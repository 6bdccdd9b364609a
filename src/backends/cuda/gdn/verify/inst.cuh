// What an instance file instantiates.
#pragma once
#include "backends/cuda/gdn/verify/kernels.cuh"
#include "backends/cuda/gdn/verify/launch.h"

namespace deltaring::cuda {

template <DType state>
using ChunkOf =
    std::conditional_t<state == DType::f32, F32Chunk, std::conditional_t<state == DType::bf16, Bf16Chunk, F16Chunk>>;

// A launch that may begin while the kernel before it ends, where there is such a thing; it waits for that kernel's
// results itself.
template <class... Args>
void launch_early(void (*kernel)(Args...), const VerifyPlan& plan, cudaStream_t stream, const Args&... args) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared),
             "cudaFuncSetAttribute");
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(plan.blocks), config.blockDim = static_cast<unsigned>(plan.threads);
  config.dynamicSmemBytes = static_cast<size_t>(plan.shared), config.stream = stream;
  config.attrs = &early, config.numAttrs = plan.early;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args...), "gdn_verify");
}

template <DType state>
void launch_direct(const VerifyPlan& plan, const VerifyParams& params, cudaStream_t stream) {
  static_assert(sizeof(Scratch) == 1088, "config.cc plans with it");
  static_assert(kSegments * sizeof(Segment) <= kDirectStatic);
  launch_early(direct_kernel<ChunkOf<state>>, plan, stream, params);
}

template <DType state>
void launch_pipeline(const VerifyPlan& plan, const VerifyParams& params, cudaStream_t stream) {
  const PipelinePlan pipeline{.tokens = plan.tokens, .states = plan.states, .scratch = plan.scratch};
  const auto kernel = plan.wide ? pipeline_kernel<ChunkOf<state>, true> : pipeline_kernel<ChunkOf<state>, false>;
  launch_early(kernel, plan, stream, params, pipeline);
}

}  // namespace deltaring::cuda
