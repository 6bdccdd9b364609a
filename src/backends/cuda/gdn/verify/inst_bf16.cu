#include "backends/cuda/gdn/verify/inst.cuh"

namespace deltaring::cuda {
template void launch_tensor<DType::bf16>(const VerifyPlan&, const VerifyParams&, cudaStream_t);
}  // namespace deltaring::cuda
