// Level 3: the window as products. S meets all keys and queries at once, then a small triangular system gives outputs:
// half the operations of going token by token, and no token waits for the one before. Still on CUDA cores.
#include "window.cuh"

namespace ladder {

constexpr int kThreads = 256, kLanes = 4, kPieces = D / (8 * kLanes), kRows = D * kLanes / kThreads;

__global__ __launch_bounds__(kThreads, 2) void products(const __grid_constant__ Verify p) {
  __shared__ __align__(16) char raw[2 * T * kPitch];
  __shared__ __align__(16) float x[2 * T][D];  // keys, then queries
  __shared__ Coefficients c;
  const int row = blockIdx.x / Hv, head = blockIdx.x % Hv;
  const int v = threadIdx.x / kLanes, part = threadIdx.x % kLanes;  // and row v + 64
  uint4 bits[kRows][kPieces];
#pragma unroll
  for (int r = 0; r < kRows; r++)
#pragma unroll
    for (int i = 0; i < kPieces; i++)
      bits[r][i] = reinterpret_cast<const uint4*>(state_of(p, row, head) + (v + D / kRows * r) * D)[kLanes * i + part];
  {
    const int j = threadIdx.x / 16, piece = threadIdx.x % 16;  // a thread 16 bytes of a row
    const uint16_t* from = token(p, row, j % T, j < T ? Hk + head / kGroup : head / kGroup);
    const uint4 eight = reinterpret_cast<const uint4*>(from)[piece];
    *reinterpret_cast<uint4*>(raw + j * kPitch + 16 * piece) = eight;
    unpack(eight, &x[j][8 * piece]);
  }
  append(p, row, head, threadIdx.x, kThreads);
  __syncthreads();
  if (threadIdx.x < 32) prepare(p, row, head, raw, c);

  float s[kRows][kPieces][8], sum[kRows][2 * T];
#pragma unroll
  for (int r = 0; r < kRows; r++)
#pragma unroll
    for (int i = 0; i < kPieces; i++) unpack(bits[r][i], s[r][i]);
#pragma unroll
  for (int j = 0; j < 2 * T; j++) {
#pragma unroll
    for (int r = 0; r < kRows; r++) sum[r][j] = 0;
#pragma unroll
    for (int i = 0; i < kPieces; i++)
#pragma unroll
      for (int e = 0; e < 8; e++)
#pragma unroll
        for (int r = 0; r < kRows; r++) sum[r][j] += s[r][i][e] * x[j][8 * (kLanes * i + part) + e];
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      sum[r][j] += __shfl_xor_sync(~0u, sum[r][j], 1);
      sum[r][j] += __shfl_xor_sync(~0u, sum[r][j], 2);
    }
  }
  __syncthreads();  // the coefficients are there
#pragma unroll
  for (int r = 0; r < kRows; r++) {
    const int i = v + D / kRows * r;
#pragma unroll
    for (int j = 0; j < T; j++) {
      float& residual = sum[r][j];
      residual = c.beta[j] * from_bf16(token(p, row, j, 2 * Hk + head)[i]) - c.key[j] * residual;
#pragma unroll
      for (int before = 0; before < j; before++) residual -= c.a[before][j] * sum[r][before];
      float o = c.query[j] * sum[r][T + j];
#pragma unroll
      for (int to = 0; to <= j; to++) o += c.w[to][j] * sum[r][to];
      const float next = __shfl_down_sync(~0u, o, kLanes);  // of row i + 1
      if (part == j % kLanes && v % 2 == 0) put(p, row, j, head, i, o, next);
    }
  }
}

void launch(const Verify& p, cudaStream_t stream) {
  products<<<p.B * Hv, kThreads, 0, stream>>>(p);
  ok(cudaGetLastError(), "products");
}

}  // namespace ladder

int main(int argc, char** argv) { return ladder::run("3 products", ladder::launch, argc, argv); }
