// Levels 3 to 5: what the tokens of a window mean to each other. With r = 1/|k| and G the sums of the log decays,
//   R_j = beta_j v_j - beta_j e^(G_j) r_j (S k_j) - sum_{i<j} beta_j e^(G_j-G_i) r_j r_i (k_j k_i) R_i
//   o_c = e^(G_c) scale/|q_c| (S q_c) + sum_{j<=c} e^(G_c-G_j) scale/|q_c| r_j (q_c k_j) R_j
// so that the state meets raw keys and queries only, all of them at once, and nobody waits for a running state.
#pragma once
#include "backends/cuda/ptx.cuh"
#include "layer.h"

namespace ladder {

using deltaring::cuda::mma_bf16;

// Bytes between the raw rows k_0..k_7, q_0..q_7 in shared memory: a warp's reads of 16 bytes meet no bank twice.
constexpr int kPitch = 2 * D + 64;

struct alignas(16) Coefficients {
  float a[T][T];  // [i][j]: of R_i in R_j, for i < j
  float w[T][T];  // [j][c]: of R_j in o_c, for j <= c
  float key[T], query[T], beta[T], pad[T];
};

// What a token holds in channels 32c + 8t .. + 7, for its row g of the eight and lane (g, t).
__device__ __forceinline__ uint4 piece_of(const char* rows, int row, int c) {
  return *reinterpret_cast<const uint4*>(rows + row * kPitch + 64 * c + 16 * (threadIdx.x % 4));
}

// A warp, for one head. The products of keys with keys and queries are one [16, 8] product of matrices of depth 128:
// raw bf16 operands, so exact in f32. A lane (g, t) gets keys 2t and 2t+1 with key g and query g. Appends the gates.
__device__ __forceinline__ void prepare(const Verify& p, int row, int head, const char* rows, Coefficients& to) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  Gate gate{0, 0};
  if (lane < T) gate = gate_of(p, row, lane, head), append_gate(p, row, lane, head, gate);
  float G = gate.g;
#pragma unroll
  for (int d = 1; d < T; d *= 2) {
    const float before = __shfl_up_sync(~0u, G, d);
    if (lane >= d) G += before;
  }
  float dots[4] = {}, kk = 0, qq = 0;
#pragma unroll
  for (int c = 0; c < D / 32; c++) {
    const uint4 k = piece_of(rows, g, c), q = piece_of(rows, T + g, c);
    mma_bf16(dots, {k.x, q.x, k.y, q.y}, k.x, k.y);
    mma_bf16(dots, {k.z, q.z, k.w, q.w}, k.z, k.w);
    float x[8], y[8];
    unpack(k, x), unpack(q, y);
#pragma unroll
    for (int i = 0; i < 8; i++) kk += x[i] * x[i], qq += y[i] * y[i];
  }
#pragma unroll
  for (int d = 1; d < 4; d *= 2) kk += __shfl_xor_sync(~0u, kk, d), qq += __shfl_xor_sync(~0u, qq, d);
  const float rk = rsqrtf(kk + 1e-6f), rq = kScale * rsqrtf(qq + 1e-6f);  // of key and query g
  const float beta = __shfl_sync(~0u, gate.beta, g), own = __shfl_sync(~0u, G, g);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int i = 2 * t + e;
    const float r = __shfl_sync(~0u, rk, 4 * i), other = __shfl_sync(~0u, G, i);
    // A decay is the power of a difference that is not positive, whatever the sums are.
    const float decay = i <= g ? expf(own - other) : 0;
    to.a[i][g] = i < g ? beta * decay * rk * r * dots[e] : 0;
    to.w[i][g] = i <= g ? decay * rq * r * dots[2 + e] : 0;
  }
  if (t == 0) to.key[g] = beta * expf(own) * rk, to.query[g] = expf(own) * rq, to.beta[g] = beta;
}

// A warp's stripe of 16 rows of S times all keys and queries: k[2r + e] of lane (g, t) is row 2g+r with key 2t+e, q the
// same with queries. Of rows 2g and 2g+1 a lane has channels 32c + 8t on in pieces of 16 bytes, each the operand of two
// products, if keys give their channels in the same order.
struct Products {
  float k[4] = {}, q[4] = {};

  __device__ __forceinline__ void add(const uint4& low, const uint4& high, const char* rows, int c) {
    const int g = threadIdx.x % 32 / 4;
    const uint4 x = piece_of(rows, g, c), y = piece_of(rows, T + g, c);
    mma_bf16(k, {low.x, high.x, low.y, high.y}, x.x, x.y);
    mma_bf16(q, {low.x, high.x, low.y, high.y}, y.x, y.y);
    mma_bf16(k, {low.z, high.z, low.w, high.w}, x.z, x.w);
    mma_bf16(q, {low.z, high.z, low.w, high.w}, y.z, y.w);
  }
};

// The stripe's outputs, stored. values[e]: rows 2g and 2g+1 of v of token 2t+e. Residual by residual: its owner in the
// quad gives it to the others, which take it where it belongs and nowhere else, so that a NaN stays where it is.
__device__ __forceinline__ void finish(const Verify& p, int row, int head, int stripe, const Coefficients& from,
                                       const Products& products, const uint32_t (&values)[2]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float r[4], o[4];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const float beta = from.beta[2 * t + e], key = from.key[2 * t + e], query = from.query[2 * t + e];
    r[e] = beta * from_bf16(values[e] & 0xffff) - key * products.k[e], o[e] = query * products.q[e];
    r[2 + e] = beta * from_bf16(values[e] >> 16) - key * products.k[2 + e], o[2 + e] = query * products.q[2 + e];
  }
#pragma unroll
  for (int j = 0; j < T; j++) {
    const int owner = (lane & ~3) | j / 2;
    const float low = __shfl_sync(~0u, r[j % 2], owner), high = __shfl_sync(~0u, r[2 + j % 2], owner);
    const float2 a = *reinterpret_cast<const float2*>(&from.a[j][2 * t]);
    const float2 w = *reinterpret_cast<const float2*>(&from.w[j][2 * t]);
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const float in_r = e == 0 ? a.x : a.y, in_o = e == 0 ? w.x : w.y;
      if (2 * t + e > j) r[e] -= in_r * low, r[2 + e] -= in_r * high;
      if (2 * t + e >= j) o[e] += in_o * low, o[2 + e] += in_o * high;
    }
  }
#pragma unroll
  for (int e = 0; e < 2; e++) put(p, row, 2 * t + e, head, 16 * stripe + 2 * g, o[e], o[2 + e]);
}

}  // namespace ladder
