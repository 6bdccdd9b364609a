#include "backends/cuda/gdn/verify/inst.cuh"

namespace deltaring::cuda {
template void launch_direct<DType::bf16>(const VerifyPlan&, const VerifyParams&, cudaStream_t);
template void launch_pipeline<DType::bf16>(const VerifyPlan&, const VerifyParams&, cudaStream_t);
}  // namespace deltaring::cuda
