// Level 1: the recurrence as it is written. A block a value head, a warp a row of S at a time, token by token, with the
// running state in global memory: every token reads and writes all of it, in f32.
#include "layer.h"

namespace ladder {

constexpr int kThreads = 128, kWarps = kThreads / 32, kShare = D / 32;  // elements of a row a lane has

__global__ __launch_bounds__(kThreads) void plain(const __grid_constant__ Verify p) {
  __shared__ float k[D], q[D];
  const int row = blockIdx.x / Hv, head = blockIdx.x % Hv, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint16_t* state = state_of(p, row, head);
  float* const S = p.scratch + static_cast<size_t>(blockIdx.x) * D * D;
  for (int i = threadIdx.x; i < D * D; i += kThreads) S[i] = from_bf16(state[i]);
  append(p, row, head, threadIdx.x, kThreads);
  for (int t = 0; t < T; t++) {
    __syncthreads();  // the last token's keys have been read, and S is there
    if (warp == 0) normalise(token(p, row, t, Hk + head / kGroup), 1, k);
    if (warp == 1) normalise(token(p, row, t, head / kGroup), kScale, q);
    const Gate gate = gate_of(p, row, t, head);
    const float decay = expf(gate.g);
    if (threadIdx.x == 0) append_gate(p, row, t, head, gate);
    __syncthreads();
    for (int v = 2 * warp; v < D; v += 2 * kWarps) {  // two rows, since two outputs are stored together
      float o[2];
      for (int r = 0; r < 2; r++) {
        float* const s = S + (v + r) * D;
        float x[kShare], seen = 0, out = 0;
        for (int i = 0; i < kShare; i++) {
          x[i] = decay * s[lane + 32 * i];
          seen += x[i] * k[lane + 32 * i];
        }
        const float d = gate.beta * (from_bf16(token(p, row, t, 2 * Hk + head)[v + r]) - warp_sum(seen));
        for (int i = 0; i < kShare; i++) {
          x[i] += d * k[lane + 32 * i];
          out += x[i] * q[lane + 32 * i];
          s[lane + 32 * i] = x[i];
        }
        o[r] = warp_sum(out);
      }
      if (lane == 0) put(p, row, t, head, v, o[0], o[1]);
    }
  }
}

void launch(const Verify& p, cudaStream_t stream) {
  plain<<<p.B * Hv, kThreads, 0, stream>>>(p);
  ok(cudaGetLastError(), "plain");
}

}  // namespace ladder

int main(int argc, char** argv) { return ladder::run("1 plain", ladder::launch, argc, argv); }
