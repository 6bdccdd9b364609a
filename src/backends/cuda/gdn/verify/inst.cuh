// What an instance file instantiates.
#pragma once
#include "backends/cuda/gdn/verify/kernel.cuh"
#include "backends/cuda/gdn/verify/launch.h"

namespace deltaring::cuda {

template <DType state>
using QuadOf =
    std::conditional_t<state == DType::f32, F32Quad, std::conditional_t<state == DType::bf16, Bf16Quad, F16Quad>>;

// A launch that may begin while the kernel before it ends, where there is such a thing; it waits for that kernel's
// results itself.
template <DType state>
void launch_tensor(const VerifyPlan& plan, const VerifyParams& params, cudaStream_t stream) {
  static_assert(sizeof(Scratch) == kScratchHead && sizeof(Header) <= kHeaderBytes, "the plan's sizes");
  const auto kernel = plan.wide ? verify_kernel<QuadOf<state>, true> : verify_kernel<QuadOf<state>, false>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared),
             "cudaFuncSetAttribute");
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(plan.blocks), config.blockDim = kThreads;
  config.dynamicSmemBytes = static_cast<size_t>(plan.shared), config.stream = stream;
  config.attrs = &early, config.numAttrs = plan.early;
  check_cuda(cudaLaunchKernelEx(&config, kernel, params), "gdn_verify");
}

}  // namespace deltaring::cuda
