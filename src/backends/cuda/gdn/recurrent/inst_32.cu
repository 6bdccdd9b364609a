#include "backends/cuda/gdn/recurrent/kernel.cuh"

namespace deltaring::cuda {

template void launch_recurrent<32>(const char*, const RecurrentArgs&, const LaunchShape&, cudaStream_t);

}  // namespace deltaring::cuda
