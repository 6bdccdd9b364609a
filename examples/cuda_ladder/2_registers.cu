// Level 2: the state is read once and stays in registers, 32 numbers of a row a lane, while all tokens pass. Nothing of
// it is ever written. What is left is arithmetic: four operations an element and token, all of them one after the
// other.
#include "layer.h"

namespace ladder {

constexpr int kThreads = 512, kLanes = 4;  // lanes of a row
constexpr int kPieces = D / (8 * kLanes);  // of 8 neighbours a lane: piece c is elements 8 (kLanes c + part) on

__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

__global__ __launch_bounds__(kThreads, 2) void registers(const __grid_constant__ Verify p) {
  __shared__ float k[T][D], q[T][D], value[T][D], decay[T], beta[T];
  const int row = blockIdx.x / Hv, head = blockIdx.x % Hv, warp = threadIdx.x / 32;
  const int v = threadIdx.x / kLanes, part = threadIdx.x % kLanes;
  const uint4* state = reinterpret_cast<const uint4*>(state_of(p, row, head) + v * D);
  uint4 bits[kPieces];
#pragma unroll
  for (int c = 0; c < kPieces; c++) bits[c] = state[kLanes * c + part];  // on their way while tokens are made ready
  if (warp < T) normalise(token(p, row, warp, Hk + head / kGroup), 1, k[warp]);
  if (warp >= T) normalise(token(p, row, warp - T, head / kGroup), kScale, q[warp - T]);
  for (int i = threadIdx.x; i < T * D; i += kThreads)
    value[i / D][i % D] = from_bf16(token(p, row, i / D, 2 * Hk + head)[i % D]);
  if (threadIdx.x < T) {
    const Gate gate = gate_of(p, row, threadIdx.x, head);
    decay[threadIdx.x] = expf(gate.g), beta[threadIdx.x] = gate.beta;
    append_gate(p, row, threadIdx.x, head, gate);
  }
  append(p, row, head, threadIdx.x, kThreads);
  float s[kPieces][8];
#pragma unroll
  for (int c = 0; c < kPieces; c++) unpack(bits[c], s[c]);
  __syncthreads();
#pragma unroll 1
  for (int t = 0; t < T; t++) {
    float seen = 0, out = 0;
#pragma unroll
    for (int c = 0; c < kPieces; c++)
#pragma unroll
      for (int e = 0; e < 8; e++) {
        s[c][e] *= decay[t];
        seen += s[c][e] * k[t][8 * (kLanes * c + part) + e];
      }
    const float d = beta[t] * (value[t][v] - sum_of_row(seen));
#pragma unroll
    for (int c = 0; c < kPieces; c++)
#pragma unroll
      for (int e = 0; e < 8; e++) {
        s[c][e] += d * k[t][8 * (kLanes * c + part) + e];
        out += s[c][e] * q[t][8 * (kLanes * c + part) + e];
      }
    out = sum_of_row(out);
    const float next = __shfl_down_sync(~0u, out, kLanes);  // of row v + 1
    if (part == 0 && v % 2 == 0) put(p, row, t, head, v, out, next);
  }
}

void launch(const Verify& p, cudaStream_t stream) {
  registers<<<p.B * Hv, kThreads, 0, stream>>>(p);
  ok(cudaGetLastError(), "registers");
}

}  // namespace ladder

int main(int argc, char** argv) { return ladder::run("2 registers", ladder::launch, argc, argv); }
