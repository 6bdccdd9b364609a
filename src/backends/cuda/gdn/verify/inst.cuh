// What an instance file instantiates.
#pragma once
#include "backends/cuda/gdn/verify/kernels.cuh"
#include "backends/cuda/gdn/verify/launch.h"
#include "backends/cuda/launch.h"

namespace deltaring::cuda {

template <DType state>
using ChunkOf =
    std::conditional_t<state == DType::f32, F32Chunk, std::conditional_t<state == DType::bf16, Bf16Chunk, F16Chunk>>;

inline LaunchShape shape_of(const VerifyPlan& plan) {
  return {.blocks = static_cast<unsigned>(plan.blocks),
          .threads = plan.threads,
          .shared = plan.shared,
          .early = plan.early};
}

template <DType state>
void launch_direct(const VerifyPlan& plan, const VerifyParams& params, cudaStream_t stream) {
  static_assert(sizeof(Scratch) == 1088, "config.cc plans with it");
  static_assert(kSegments * sizeof(Segment) <= kDirectStatic);
  launch("gdn_verify", direct_kernel<ChunkOf<state>>, shape_of(plan), stream, params);
}

template <DType state>
void launch_pipeline(const VerifyPlan& plan, const VerifyParams& params, cudaStream_t stream) {
  const PipelinePlan pipeline{.tokens = plan.tokens, .states = plan.states, .scratch = plan.scratch};
  const auto kernel = plan.wide ? pipeline_kernel<ChunkOf<state>, true> : pipeline_kernel<ChunkOf<state>, false>;
  launch("gdn_verify", kernel, shape_of(plan), stream, params, pipeline);
}

}  // namespace deltaring::cuda
