// What the tokens of a segment mean to each other, by one warp: gates, norms, the triangular system and its solution.
//
// With r = 1/|k|, G the sums of g, A[i, j] = beta_i r_i r_j e^(G_i-G_j) k_i.k_j (j < i) the corrections are
// D = (I + A)^-1 R with R_i = beta_i v_i - beta_i e^(G_i) r_i S k_i, which the state's owner computes. Here:
//   outputs      o_c += sum_j P[c, j] R_j,  P = W (I + A)^-1,  W[c, j] = e^(G_c-G_j) scale r_j /|q_c| q_c.k_j (j <= c)
//   corrections  U_i = e^(Gtotal-G_i) r_i D_i, which the fold adds as U k^T
// P (I + A) = W is solved from the right, a row to each quad of lanes, so row c sees rows <= c of A and nothing later.
// beta in [0, 1] and |k^| = 1 bound (I + A)^-1 by 1.
//
// Loops are rolled up: this code is long and runs once a head, where the instruction cache is what it waits for.
#pragma once
#include <cuda_fp16.h>

#include "backends/cuda/device/gates.cuh"
#include "backends/cuda/gdn/verify/fragments.cuh"
#include "backends/cuda/gdn/verify/units.h"

namespace deltaring::cuda {

// A warp's own, in shared memory. The rows hold plain dot products first.
struct Scratch {
  float g[kMostRecords], beta[kMostRecords];  // of the unit's keys
  double
      G[8 * kKeyTiles];  // log2 of the decay up to a key. Differences of f32 sums would lose what a strong one leaves
  float r[8 * kKeyTiles], left[8 * kKeyTiles];  // 1 / |k|, beta / |k|
  float q[8 * kQueryTiles];                     // scale / |q|
  float rows[];  // A [i, j], zeros on the diagonal and above; then W [c, j], zeros behind c's key

  static __host__ __device__ constexpr int pitch(int key_tiles) { return 8 * key_tiles + 4; }
  static __host__ __device__ constexpr int bytes(int key_tiles, int query_tiles) {
    return static_cast<int>(sizeof(Scratch)) + 32 * (key_tiles + query_tiles) * pitch(key_tiles);
  }
};

// Where rows come from: keys in order of distance and behind them queries; values of a head.
__device__ __forceinline__ const uint16_t* token_row(const VerifyParams& p, const Unit& unit, int row) {
  if (row >= unit.keys())
    return p.q + token_at(unit.token + row - unit.keys(), p.q_token, unit.key_head, p.q_head);
  if (row >= unit.records) return p.k + token_at(unit.token + row - unit.n, p.k_token, unit.key_head, p.k_head);
  return p.record_k + ring_at(p.k_at, unit, unit.key_head, slot_of(p, unit, row));
}
__device__ __forceinline__ const uint16_t* value_row(const VerifyParams& p, const Unit& unit, int head, int key) {
  if (key >= unit.records) return p.v + token_at(unit.token + key - unit.n, p.v_token, head, p.v_head);
  return p.record_v + ring_at(p.v_at, unit, head, slot_of(p, unit, key));
}

namespace prepare {

// What a lane has of a head's gates, on its way from memory: of keys `lane` and `lane` + 32.
struct Gates {
  uint32_t g[2], beta[2];  // as they are stored: records f32, tokens of gate_dtype
  float rate, bias;        // A_log, dt_bias
};

// Only loads.
__device__ __forceinline__ Gates fetch_gates(const VerifyParams& p, const Unit& unit, int head, int lane) {
  Gates x{};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int key = lane + 32 * i;
    if (key >= unit.keys()) break;
    if (key < unit.records) {
      const int slot = slot_of(p, unit, key);
      x.g[i] = __float_as_uint(p.record_g[ring_at(p.g_at, unit, head, slot)]);
      x.beta[i] = __float_as_uint(p.record_beta[ring_at(p.beta_at, unit, head, slot)]);
      continue;
    }
    const int token = unit.token + key - unit.n;
    const int64_t g = token_at(token, p.g_token, head, p.g_head),
                  beta = token_at(token, p.beta_token, head, p.beta_head);
    if (p.gate_dtype == DType::f32) {
      x.g[i] = static_cast<const uint32_t*>(p.g)[g], x.beta[i] = static_cast<const uint32_t*>(p.beta)[beta];
    } else {
      x.g[i] = static_cast<const uint16_t*>(p.g)[g], x.beta[i] = static_cast<const uint16_t*>(p.beta)[beta];
    }
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
#pragma unroll 1
  for (int key = lane; key < unit.keys(); key += 32) {
    const uint32_t raw_g = key < 32 ? x.g[0] : x.g[1], raw_beta = key < 32 ? x.beta[0] : x.beta[1];
    const bool record = key < unit.records;
    float g = widen_gate(raw_g, record ? DType::f32 : p.gate_dtype);
    float beta = widen_gate(raw_beta, record ? DType::f32 : p.gate_dtype);
    if (!record && p.A_log) g = log_decay(x.rate, x.bias, g), beta = sigmoid(beta);
    w.g[key] = g, w.beta[key] = beta;
    if (key < unit.n || !p.append) continue;
    const int slot = slot_of(p, unit, key);
    p.record_g[ring_at(p.g_at, unit, head, slot)] = g;
    p.record_beta[ring_at(p.beta_at, unit, head, slot)] = beta;
  }
}

// The window's k as records.
__device__ __forceinline__ void append_keys(const VerifyParams& p, const Unit& unit, const char* tokens, int lane) {
#pragma unroll 1
  for (int key = unit.n + lane / 16; key < unit.keys(); key += 2) {
    uint16_t* to = p.record_k + ring_at(p.k_at, unit, unit.key_head, slot_of(p, unit, key));
    reinterpret_cast<uint4*>(to)[lane % 16] = reinterpret_cast<const uint4*>(tokens + key * kKeyPitch)[lane % 16];
  }
}

// 1 / sqrt(x), a Newton step behind the hardware's.
__device__ __forceinline__ float inverse_root(float x) {
  const float y = rsqrtf(x);
  return y * fmaf(-0.5f * x * y, y, 1.5f);
}

// Dot products of 16 rows with 8 columns.
__device__ __forceinline__ void dots(uint32_t rows, uint32_t columns, float (&d)[4]) {
  float odd[4] = {};
#pragma unroll
  for (float& x : d) x = 0;
#pragma unroll
  for (int c = 0; c < kHead / 32; c++) {
    uint32_t a[4], b[4], x[4];
    load_matrices(x, columns + 64 * c);
    load_matrices(a, rows + 64 * c);
    load_matrices(b, rows + 64 * c + 32);
    mma_bf16(d, a, x[0], x[1]);
    mma_bf16(odd, b, x[2], x[3]);
  }
#pragma unroll
  for (int m = 0; m < 4; m++) d[m] += odd[m];
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

// Sums of the gates, and the coefficients of single tokens, once their norms are there.
__device__ __forceinline__ void prepare_tokens(const Segment& s, int lane, Scratch& w, Coefficients& out) {
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

// 8 rows of P, or of what makes corrections, as fragments a key tile, `stride` apart: `row` is the lane's, of W, or of
// the diagonal.
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
  for (int b = 0; b < kKeyTiles; b++) {
    if (b < kt) store_fragment(fragments + b * stride, lane, x[2 * b], x[2 * b + 1]);
  }
}

// Dot products of the segment's keys and queries with its keys into the scratch's rows, as far as they are asked for,
// and norms from those of tokens with themselves.
__device__ __forceinline__ void multiply(const VerifyParams& p, const Segment& s, const char* keys,
                                         const char* queries, int lane, Scratch& w) {
  const int kt = s.key_tiles(), qt = s.query_tiles(), pitch = Scratch::pitch(kt), g = lane / 4, t = lane % 4;
  const auto tile = [&](int b) { return b < kt ? rows_of(keys, s.keys, b) : rows_of(queries, s.queries, b - kt); };
  // Of a product of the tile with itself in d[0], d[1]: that of the lane's row with itself.
  const auto norm = [&](float even, float odd) {
    const float x = g % 2 ? odd : even;
    return p.l2 ? inverse_root(x + 1e-6f) : 1.0f;
  };
#pragma unroll 1
  for (int b = 0; b < kt + qt; b += 2) {
    const bool both = b + 1 < kt + qt;
    const uint32_t rows = rows_place(tile(b), tile(both ? b + 1 : b), lane);
    float* to = w.rows + (8 * b + g) * pitch + 2 * t;
#pragma unroll 1
    for (int column = 0; column < min(b + 2, kt); column++, to += 8) {
      float d[4];
      dots(rows, columns_place(tile(column), lane), d);
      *reinterpret_cast<float2*>(to) = {d[0], d[1]};
      if (both) *reinterpret_cast<float2*>(to + 8 * pitch) = {d[2], d[3]};
      if (t != g / 2) continue;
      if (column == b) w.r[8 * b + g] = norm(d[0], d[1]);
      if (column == b + 1) w.r[8 * b + 8 + g] = norm(d[2], d[3]);
    }
  }
#pragma unroll 1
  for (int u = 0; u < qt; u++) {
    float d[4];
    dots(rows_place(tile(kt + u), tile(kt + u), lane), columns_place(tile(kt + u), lane), d);
    if (t == g / 2) w.q[8 * u + g] = p.scale * norm(d[0], d[1]);
  }
}

__device__ __forceinline__ void prepare_segment(const VerifyParams& p, const Segment& s, const char* keys,
                                                const char* queries, int lane, Scratch& w, char* block) {
  const int kt = s.key_tiles(), qt = s.query_tiles(), pitch = Scratch::pitch(kt), g = lane / 4;
  float* const A = w.rows;
  float* const W = A + kt * 8 * pitch;
  multiply(p, s, keys, queries, lane, w);
  __syncwarp();
  prepare_tokens(s, lane, w, *reinterpret_cast<Coefficients*>(block));
  __syncwarp();
  scale_rows(A, pitch, 8 * kt, kt, true, w.left, w.G, 0, lane, w);
  scale_rows(W, pitch, s.queries, kt, false, w.q, w.G + s.window, s.window + 1, lane, w);
  __syncwarp();
  // Groups of 8 right-hand sides: the queries, then with an update each key for its own.
#pragma unroll 1
  for (int group = 0; group < qt + (s.update ? kt : 0); group++) {
    const bool query = group < qt;
    const int u = query ? group : group - qt;
    char* to = block + (query ? s.outputs(0, u) : s.corrections(0, u));
    solve_rows(s, 8 * u + g, query ? W : nullptr, A, pitch, to, (query ? qt : kt) * kFragment, lane, w);
  }
  __syncwarp();
}

}  // namespace prepare

// Head `head` of a unit, by a warp, once the keys and queries are there.
__device__ __forceinline__ void prepare_head(const VerifyParams& p, const Unit& unit, const Segment* segments, int head,
                                             char* tokens, int lane, Scratch& w) {
  char* const coefficients = tokens + unit.coefficients + head * unit.stride;
#pragma unroll 1
  for (int i = 0; i < unit.segments; i++) {
    const Segment s = segments[i];
    const char *keys = tokens + s.first * kKeyPitch, *queries = tokens + unit.queries() + s.query * kKeyPitch;
    prepare::prepare_segment(p, s, keys, queries, lane, w, coefficients + s.block);
  }
}

}  // namespace deltaring::cuda
