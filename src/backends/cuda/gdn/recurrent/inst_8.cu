#include "backends/cuda/gdn/recurrent/kernel.cuh"

namespace deltaring::cuda {

bool code_runs_here() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, recurrent_kernel<8, false>) == cudaSuccess;
}

template void launch_recurrent<8>(const RecurrentArgs&, unsigned, cudaStream_t);

}  // namespace deltaring::cuda
