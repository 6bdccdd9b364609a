// What an instance file instantiates.
#pragma once
#include "backends/cuda/gdn/verify/kernel.cuh"
#include "backends/cuda/gdn/verify/launch.h"
#include "backends/cuda/launch.h"

namespace deltaring::cuda {

template <DType state>
using QuadOf =
    std::conditional_t<state == DType::f32, F32Quad, std::conditional_t<state == DType::bf16, Bf16Quad, F16Quad>>;

template <DType state>
void launch_tensor(const VerifyPlan& plan, const VerifyParams& params, cudaStream_t stream) {
  static_assert(sizeof(Scratch) == kScratchHead && sizeof(Header) <= kHeaderBytes, "the plan's sizes");
  const auto turns = static_cast<unsigned>(plan.turns()), layers = static_cast<unsigned>(plan.layers);
  const LaunchShape shape{.blocks = static_cast<unsigned>(plan.blocks) / turns / layers,
                          .threads = kVerifyThreads,
                          .shared = plan.shared,
                          .early = plan.early > 0,
                          .y = turns,
                          .z = layers};
  const auto kernel = plan.wide ? verify_kernel<QuadOf<state>, true> : verify_kernel<QuadOf<state>, false>;
  launch("gdn_verify", kernel, shape, stream, params);
}

}  // namespace deltaring::cuda
