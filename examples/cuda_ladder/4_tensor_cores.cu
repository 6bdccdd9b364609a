// Level 4: the products on tensor cores, exactly. Keys, queries and the checkpoint are bf16 already, so raw they go in,
// and norms, gates and decays multiply the f32 sums afterwards. Arithmetic is no longer the limit: a block waits for
// its tokens, then for its preparation, and the memory waits with it.
#include "window.cuh"

namespace ladder {

constexpr int kStripes = D / 16, kThreads = 32 * (kStripes + 1);  // a warp 16 rows, and one that prepares

__global__ __launch_bounds__(kThreads, 3) void tensor_cores(const __grid_constant__ Verify p) {
  __shared__ __align__(16) char rows[2 * T * kPitch];
  __shared__ Coefficients coefficients;
  const int row = blockIdx.x / Hv, head = blockIdx.x % Hv, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  uint4 low[D / 32], high[D / 32];  // rows 2g and 2g+1 of the warp's stripe, channels 32c + 8t on
  uint32_t values[2];
  if (warp < kStripes) {
    const uint4* state = reinterpret_cast<const uint4*>(state_of(p, row, head) + (16 * warp + 2 * g) * D);
#pragma unroll
    for (int c = 0; c < D / 32; c++) low[c] = state[4 * c + t], high[c] = state[D / 8 + 4 * c + t];
#pragma unroll
    for (int e = 0; e < 2; e++)
      values[e] = reinterpret_cast<const uint32_t*>(token(p, row, 2 * t + e, 2 * Hk + head))[8 * warp + g];
  }
  for (int i = threadIdx.x; i < 2 * T * D / 8; i += kThreads) {
    const int j = i / 16, piece = i % 16;
    const uint16_t* from = token(p, row, j % T, j < T ? Hk + head / kGroup : head / kGroup);
    *reinterpret_cast<uint4*>(rows + j * kPitch + 16 * piece) = reinterpret_cast<const uint4*>(from)[piece];
  }
  __syncthreads();
  Products products;
  if (warp == kStripes) {
    prepare(p, row, head, rows, coefficients);
  } else {
#pragma unroll
    for (int c = 0; c < D / 32; c++) products.add(low[c], high[c], rows, c);
  }
  append(p, row, head, threadIdx.x, kThreads);
  __syncthreads();
  if (warp < kStripes) finish(p, row, head, warp, coefficients, products, values);
}

void launch(const Verify& p, cudaStream_t stream) {
  tensor_cores<<<p.B * Hv, kThreads, 0, stream>>>(p);
  ok(cudaGetLastError(), "tensor_cores");
}

}  // namespace ladder

int main(int argc, char** argv) { return ladder::run("4 tensor cores", ladder::launch, argc, argv); }
