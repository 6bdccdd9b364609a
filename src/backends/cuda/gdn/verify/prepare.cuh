// What the tokens of a segment mean to each other, by one warp: gates, norms, the triangular system and its solution.
//
// With r = 1/|k|, G the sums of g, A[i, j] = beta_i r_i r_j e^(G_i-G_j) k_i.k_j (j < i) the corrections are
// D = (I + A)^-1 R with R_i = beta_i v_i - beta_i e^(G_i) r_i S k_i, which the state's owner computes. Here:
//   outputs      o_c += sum_j P[c, j] R_j,  P = W (I + A)^-1,  W[c, j] = e^(G_c-G_j) scale r_j /|q_c| q_c.k_j (j <= c)
//   corrections  U_i = e^(Gtotal-G_i) r_i D_i, which the fold adds as U k^T
// P (I + A) = W is solved from the right, a row to each quad of lanes, so row c sees rows <= c of A and nothing later.
// beta in [0, 1] and |k^| = 1 bound (I + A)^-1 by 1.
//
// Loops are rolled up: the roles of the pipeline share an instruction cache that this code alone could fill.
#pragma once
#include <cuda_fp16.h>

#include "backends/cuda/device/gates.cuh"
#include "backends/cuda/gdn/verify/fragments.cuh"
#include "backends/cuda/gdn/verify/units.h"

namespace deltaring::cuda {

// A warp's own, in shared memory. A and W hold plain dot products first.
struct Scratch {
  float g[64], beta[64];  // of the unit's keys
  double
      G[8 * kKeyTiles];  // log2 of the decay up to a key. Differences of f32 sums would lose what a strong one leaves
  float r[8 * kKeyTiles], left[8 * kKeyTiles];  // 1 / |k|, beta / |k|
  float q[8 * kQueryTiles];                     // scale / |q|
  float rows[];  // A [i, j], zeros on the diagonal and above; W [c, j], zeros behind c's key

  static __host__ __device__ constexpr int pitch(int key_tiles) { return 8 * key_tiles + 4; }
  static __host__ __device__ constexpr int bytes(int key_tiles, int query_tiles) {
    return static_cast<int>(sizeof(Scratch)) + 32 * (key_tiles + query_tiles) * pitch(key_tiles);
  }
};

namespace prepare {

// What a lane has of a head's gates, on its way from memory: the records of keys `lane` and `lane` + 32, and a window
// token, of which a lane has one at most.
struct Gates {
  float g[2], beta[2];  // of the records
  uint32_t a, b;        // of the window, as they are stored
  float rate, bias;     // A_log, dt_bias
};

// The window token of a lane.
__device__ __forceinline__ int window_token(const Unit& unit, int lane) { return (lane - unit.n) & 31; }

// Only loads, so that they may be in flight while another head is prepared.
__device__ __forceinline__ Gates fetch_gates(const VerifyParams& p, const Unit& unit, int head, int lane) {
  Gates x{};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int key = lane + 32 * i, slot = slot_of(p, unit, key);
    if (key >= unit.n) continue;
    x.g[i] = p.record_g[ring_at(p.g_at, unit, head, slot)];
    x.beta[i] = p.record_beta[ring_at(p.beta_at, unit, head, slot)];
  }
  const int i = window_token(unit, lane);
  if (i >= unit.T) return x;
  const int64_t a = token_at(unit.token + i, p.g_token, head, p.g_head);
  const int64_t b = token_at(unit.token + i, p.beta_token, head, p.beta_head);
  if (p.gate_dtype == DType::f32) {
    x.a = static_cast<const uint32_t*>(p.g)[a], x.b = static_cast<const uint32_t*>(p.beta)[b];
  } else {
    x.a = static_cast<const uint16_t*>(p.g)[a], x.b = static_cast<const uint16_t*>(p.beta)[b];
  }
  if (p.A_log) x.rate = p.A_log[head], x.bias = p.dt_bias[head];
  return x;
}

__device__ __forceinline__ float widen_gate(uint32_t bits, DType t) {
  return t == DType::f32    ? __uint_as_float(bits)
         : t == DType::bf16 ? __uint_as_float(bits << 16)
                            : __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}

// g and beta of all keys into the scratch; the window's into its records as well.
__device__ __forceinline__ void settle_gates(const VerifyParams& p, const Unit& unit, int head, const Gates& x,
                                             int lane, Scratch& w) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int key = lane + 32 * i;
    if (key < unit.n) w.g[key] = x.g[i], w.beta[key] = x.beta[i];
  }
  const int i = window_token(unit, lane), key = unit.n + i;
  if (i >= unit.T) return;
  float g = widen_gate(x.a, p.gate_dtype), beta = widen_gate(x.b, p.gate_dtype);
  if (p.A_log) g = log_decay(x.rate, x.bias, g), beta = sigmoid(beta);
  const int slot = slot_of(p, unit, key);
  w.g[key] = g, w.beta[key] = beta;
  p.record_g[ring_at(p.g_at, unit, head, slot)] = g;
  p.record_beta[ring_at(p.beta_at, unit, head, slot)] = beta;
}

// The window's k as records.
__device__ __forceinline__ void append_keys(const VerifyParams& p, const Unit& unit, const char* tokens, int lane) {
#pragma unroll 1
  for (int i = lane / 16; i < unit.T; i += 2) {
    uint16_t* to = p.record_k + ring_at(p.k_at, unit, unit.key_head, slot_of(p, unit, unit.n + i));
    reinterpret_cast<uint4*>(to)[lane % 16] =
        reinterpret_cast<const uint4*>(tokens + (unit.n + i) * kKeyPitch)[lane % 16];
  }
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

__device__ __forceinline__ float squares(float sum, uint32_t pair) {
  return fmaf(bf16_high(pair), bf16_high(pair), fmaf(bf16_low(pair), bf16_low(pair), sum));
}

// 1 / sqrt(x), a Newton step behind the hardware's.
__device__ __forceinline__ float inverse_root(float x) {
  const float y = rsqrtf(x);
  return y * fmaf(-0.5f * x * y, y, 1.5f);
}

// 1/|row| of the rows of a tile of 8, for lanes t = 0 of (g, t).
__device__ __forceinline__ float inverse_norm(const char* rows, bool l2, int lane) {
  float sum = 0;
#pragma unroll 1
  for (int c = 0; c < kHead / 32; c++) {
    const uint4 x = *reinterpret_cast<const uint4*>(rows + lane / 4 * kKeyPitch + lane % 4 * 16 + 64 * c);
    sum = squares(squares(squares(squares(sum, x.x), x.y), x.z), x.w);
  }
  sum = quad_sum(sum);
  return l2 ? inverse_root(sum + 1e-6f) : 1;
}

// Dot products of 8 rows, and of the next 8 if `both`, with 8 columns into a matrix.
__device__ __forceinline__ void multiply(const char* rows, bool both, const char* columns, float* to, int pitch,
                                         int lane) {
  float even[4] = {}, odd[4] = {};
  const int offset = lane / 4 * kKeyPitch + lane % 4 * 16;
#pragma unroll
  for (int c = 0; c < kHead / 32; c++) {
    const uint4 a = *reinterpret_cast<const uint4*>(rows + offset + 64 * c);
    const uint4 b = *reinterpret_cast<const uint4*>(rows + 8 * kKeyPitch + offset + 64 * c);
    const uint4 x = *reinterpret_cast<const uint4*>(columns + offset + 64 * c);
    mma_bf16(even, {a.x, b.x, a.y, b.y}, x.x, x.y);
    mma_bf16(odd, {a.z, b.z, a.w, b.w}, x.z, x.w);
  }
  float* at = to + lane / 4 * pitch + lane % 4 * 2;
  *reinterpret_cast<float2*>(at) = {even[0] + odd[0], even[1] + odd[1]};
  if (both) *reinterpret_cast<float2*>(at + 8 * pitch) = {even[2] + odd[2], even[3] + odd[3]};
}

__device__ __forceinline__ double inclusive_sum(double x, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const double before = __shfl_up_sync(~0u, x, step);
    if (lane >= step) x += before;
  }
  return x;
}

__device__ __forceinline__ float decay(double from, double to) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(static_cast<float>(to - from)));
  return y;
}

// Dot products of a matrix become what is asked for, tiles of 8 x 8 with lane (row, column) = (lane / 8 and + 4, lane %
// 8): times left[i] r[j] e^(G_to(i) - G_j), and zero where j is not before `ends` + i. Of a triangle the tiles above
// the diagonal stay unread.
__device__ __forceinline__ void scale_rows(float* m, int pitch, int rows, int key_tiles, bool triangle,
                                           const float* left, const double* G, int ends, int lane, const Scratch& w) {
#pragma unroll 1
  for (int b = 0; b < key_tiles; b++) {
    const int j = 8 * b + lane % 8;
    const double from = w.G[j];
    const float r = w.r[j];
#pragma unroll 2
    for (int i = (triangle ? 8 * b : 0) + lane / 8; i < rows; i += 4) {
      float& x = m[i * pitch + j];
      x = j < ends + i ? left[i] * r * decay(from, G[i]) * x : 0;
    }
  }
}

// x (I + A) = x for the columns of key tile b and before, the last of them first. Lane (g, t) holds row g of 8 at
// columns 8m+2t, 8m+2t+1; `last` is the last column that may be other than 0 in its row.
template <int b>
__device__ __forceinline__ void solve(float (&x)[2 * kKeyTiles], int last, int keys, const float* A, int pitch,
                                      int lane) {
#pragma unroll 1
  for (int i = min(8 * b + 7, keys - 1); i >= 8 * b; i--) {
    const float* row = A + i * pitch + lane % 4 * 2;
    const float d = __shfl_sync(~0u, i % 2 ? x[2 * b + 1] : x[2 * b], (lane & ~3) | (i % 8 / 2));
    const bool reached = i <= last;
#pragma unroll
    for (int m = 0; m <= b; m++) {
      const float2 a = *reinterpret_cast<const float2*>(row + 8 * m);
      x[2 * m] = reached ? fmaf(-d, a.x, x[2 * m]) : x[2 * m];
      x[2 * m + 1] = reached ? fmaf(-d, a.y, x[2 * m + 1]) : x[2 * m + 1];
    }
  }
  if constexpr (b > 0) solve<b - 1>(x, last, keys, A, pitch, lane);
}

// Keys as the B operand of a fold: pairs of keys a channel, channels in the order in which lanes own the state.
__device__ __forceinline__ void transpose(const char* keys, int key_tiles, char* to, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll 1
  for (int m = 0; m < 4 * key_tiles; m++) {
    const char* row = keys + (m / 4 * 8 + 2 * t) * kKeyPitch + m % 4 * 64 + g / 2 * 16 + g % 2 * 2;
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t low = *reinterpret_cast<const uint16_t*>(row + 4 * i);
      pair[i] = low | uint32_t{*reinterpret_cast<const uint16_t*>(row + kKeyPitch + 4 * i)} << 16;
    }
    reinterpret_cast<uint4*>(to)[m * 32 + lane] = {pair[0], pair[1], pair[2], pair[3]};
  }
}

// Norms, sums of the gates and the coefficients of single tokens.
__device__ __forceinline__ void prepare_tokens(const VerifyParams& p, const Segment& s, const char* keys,
                                               const char* queries, int lane, Scratch& w, Coefficients& out) {
  const int kt = s.key_tiles(), t = lane % 4, g = lane / 4;
#pragma unroll 1
  for (int b = 0; b < kt + s.query_tiles(); b++) {
    const bool key = b < kt;
    const float norm = inverse_norm(key ? keys + 8 * b * kKeyPitch : queries + 8 * (b - kt) * kKeyPitch, p.l2, lane);
    if (t == 0) (key ? w.r + 8 * b : w.q + 8 * (b - kt))[g] = key ? norm : p.scale * norm;
  }
  // The least decay that is told from none at all; -inf would make differences of sums NaN.
  const float gate = lane < s.keys ? w.g[s.first + lane] : 0, beta = lane < s.keys ? w.beta[s.first + lane] : 0;
  const double G = inclusive_sum((gate < -1e6f ? -1e6f : gate) * 1.4426950408889634, lane);
  const double total = __shfl_sync(~0u, G, s.keys - 1);
  w.G[lane] = G;
  __syncwarp();
  const float left = beta * w.r[lane];
  w.left[lane] = left;
  if (lane < s.keys) out.key[lane] = left * decay(0, G), out.beta[lane] = beta;
  if (lane < s.queries) out.query[lane] = w.q[lane] * decay(0, w.G[s.window + lane]);
  if (lane == 0) out.total = decay(0, total);
}

// 8 rows of P, or of what makes corrections, as a fragment: `row` is the lane's, of W, or of the diagonal.
__device__ __forceinline__ void solve_rows(const Segment& s, int row, const float* W, const float* A, int pitch,
                                           char* fragments, int stride, int lane, const Scratch& w) {
  const int kt = s.key_tiles(), t = lane % 4;
  const float own = W ? 0 : w.r[row] * decay(w.G[row], w.G[s.keys - 1]);
  float x[2 * kKeyTiles];
#pragma unroll
  for (int b = 0; b < kKeyTiles; b++) {
    const int j = 8 * b + 2 * t;
    float2 pair{j == row ? own : 0, j + 1 == row ? own : 0};
    if (W) pair = b < kt ? *reinterpret_cast<const float2*>(W + row * pitch + j) : float2{0, 0};
    x[2 * b] = pair.x, x[2 * b + 1] = pair.y;
  }
  solve<kKeyTiles - 1>(x, W ? s.window + row : row, s.keys, A, pitch, lane);
#pragma unroll
  for (int depth = 0; depth < kKeyTiles / 2; depth++) {
    if (2 * depth >= kt) continue;
    uint32_t b0[3], b1[3];
    split(x[4 * depth], x[4 * depth + 1], b0);
    split(x[4 * depth + 2], x[4 * depth + 3], b1);
    store_fragment(fragments + depth * stride * kFragment, lane, b0, b1);
  }
}

__device__ __forceinline__ void prepare_segment(const VerifyParams& p, const Segment& s, const char* keys,
                                                const char* queries, int lane, Scratch& w, char* block) {
  const int kt = s.key_tiles(), qt = s.query_tiles(), pitch = Scratch::pitch(kt), g = lane / 4;
  float* const A = w.rows;
  float* const W = A + kt * 8 * pitch;
#pragma unroll 1
  for (int i = 0; i < s.depth() + (qt + 1) / 2; i++) {
    const bool key = i < s.depth();
    const char* rows = key ? keys + 16 * i * kKeyPitch : queries;
    const int columns = key ? min(2 * i + 2, kt) : kt;
    const bool both = key ? 2 * i + 1 < kt : qt > 1;
    float* to = key ? A + 16 * i * pitch : W;
#pragma unroll 1
    for (int b = 0; b < columns; b++) multiply(rows, both, keys + 8 * b * kKeyPitch, to + 8 * b, pitch, lane);
  }
  prepare_tokens(p, s, keys, queries, lane, w, *reinterpret_cast<Coefficients*>(block));
  __syncwarp();
  scale_rows(A, pitch, 8 * kt, kt, true, w.left, w.G, 0, lane, w);
  scale_rows(W, pitch, s.queries, kt, false, w.q, w.G + s.window, s.window + 1, lane, w);
  __syncwarp();
  // Groups of 8 right-hand sides: the queries, then with an update each key for its own.
#pragma unroll 1
  for (int group = 0; group < qt + (s.update ? kt : 0); group++) {
    const bool query = group < qt;
    char* to = block + (query ? s.outputs() + group * kFragment : s.corrections() + (group - qt) * kFragment);
    solve_rows(s, 8 * (query ? group : group - qt) + g, query ? W : nullptr, A, pitch, to, query ? qt : kt, lane, w);
  }
  __syncwarp();
}

}  // namespace prepare

// Head `head` of a unit, once the keys and queries are there and its gates are in the scratch. What the heads share is
// the first one's to do.
__device__ __forceinline__ void prepare_head(const VerifyParams& p, const Unit& unit, const Segment* segments, int head,
                                             char* tokens, int lane, Scratch& w) {
  if (head == 0 && unit.head % p.group == 0) prepare::append_keys(p, unit, tokens, lane);
  char* const coefficients = tokens + unit.coefficients + head * unit.stride;
#pragma unroll 1
  for (int i = 0; i < unit.segments; i++) {
    const Segment s = segments[i];
    const char *keys = tokens + s.first * kKeyPitch, *queries = tokens + unit.queries() + s.query * kKeyPitch;
    prepare::prepare_segment(p, s, keys, queries, lane, w, coefficients + s.block);
    if (head == 0 && s.update) prepare::transpose(keys, s.key_tiles(), tokens + s.transposed, lane);
  }
}

}  // namespace deltaring::cuda
