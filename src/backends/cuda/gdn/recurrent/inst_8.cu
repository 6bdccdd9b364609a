#include "backends/cuda/gdn/recurrent/kernel.cuh"

namespace deltaring::cuda {

bool code_runs_here() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, recurrent_kernel<Form<8, DType::f32, false>>) == cudaSuccess;
}

template void launch_recurrent<8>(const char*, const RecurrentArgs&, const LaunchShape&, cudaStream_t);

}  // namespace deltaring::cuda
