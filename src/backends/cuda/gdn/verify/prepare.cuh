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
#include "backends/cuda/device/element.cuh"
#include "backends/cuda/device/gates.cuh"
#include "backends/cuda/gdn/verify/fragments.cuh"
#include "backends/cuda/gdn/verify/units.h"

namespace deltaring::cuda {

// What a warp prepares a head in, in shared memory.
struct alignas(16) Scratch {
  double
      G[8 * kKeyTiles];  // log2 of the decay up to a key. Differences of f32 sums would lose what a strong one leaves
  float left[8 * kKeyTiles];  // beta / |k|
  float A[];                  // tiles [8, 8] of the lower triangle; zeros on the diagonal and above
};

// Where rows come from: keys in order of distance and behind them queries; values of a head. Selections, no branches.
__device__ __forceinline__ const uint16_t* token_row(const VerifyParams& p, const Unit& unit, int row) {
  const bool record = row < unit.records, query = row >= unit.keys();
  const uint16_t* from = record  ? p.record_k + (unit.seat * p.k_at.outer + wide_product(unit.key_head, p.k_at.head))
                         : query ? p.q + wide_product(unit.key_head, p.q_head)
                                 : p.k + wide_product(unit.key_head, p.k_head);
  const int at = record ? slot_of(p, unit, row) : unit.token + row - (query ? unit.keys() : unit.n);
  return from + wide_product(at, record ? p.k_at.row : query ? p.q_token : p.k_token);
}
__device__ __forceinline__ const uint16_t* value_row(const VerifyParams& p, const Unit& unit, int head, int key) {
  const bool record = key < unit.records;
  const uint16_t* from = record ? p.record_v + (unit.seat * p.v_at.outer + wide_product(head, p.v_at.head))
                                : p.v + wide_product(head, p.v_head);
  const int at = record ? slot_of(p, unit, key) : unit.token + key - unit.n;
  return from + wide_product(at, record ? p.v_at.row : p.v_token);
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
    x.g[i] = load_bits(p.g, p.gate_dtype, g), x.beta[i] = load_bits(p.beta, p.gate_dtype, beta);
  }
  if (p.A_log) x.rate = p.A_log[head], x.bias = p.dt_bias[head];
  return x;
}

// g and beta of keys `lane` and `lane` + 32, as bits again; the window's into its records as well.
__device__ __forceinline__ void settle_gates(const VerifyParams& p, const Unit& unit, int head, Gates& x, int lane) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int key = lane + 32 * i;
    if (key >= unit.keys()) break;
    if (key < unit.records) continue;
    float g = value_of(p.gate_dtype, x.g[i]), beta = value_of(p.gate_dtype, x.beta[i]);
    if (p.A_log) g = log_decay(x.rate, x.bias, g), beta = sigmoid(beta);
    x.g[i] = __float_as_uint(g), x.beta[i] = __float_as_uint(beta);
    if (key < unit.n || !p.append) continue;
    const int slot = slot_of(p, unit, key);
    p.record_g[ring_at(p.g_at, unit, head, slot)] = g;
    p.record_beta[ring_at(p.beta_at, unit, head, slot)] = beta;
  }
}

// Of any key.
__device__ __forceinline__ float of_key(const uint32_t (&x)[2], int key) {
  const uint32_t low = __shfl_sync(~0u, x[0], key & 31), high = __shfl_sync(~0u, x[1], key & 31);
  return __uint_as_float(key < 32 ? low : high);
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

// Of the first `count` lanes.
__device__ __forceinline__ double inclusive_sum(double x, int count, int lane) {
#pragma unroll 1
  for (int step = 1; step < count; step *= 2) {
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

// Dot products with keys j and j+1, times factor r[j] e^(to - G_j).
__device__ __forceinline__ float2 scaled(float2 x, float factor, double to, const float* r, int j, const Scratch& w) {
  const double2 from = *reinterpret_cast<const double2*>(&w.G[j]);
  return {factor * r[j] * decay(from.x, to) * x.x, factor * r[j + 1] * decay(from.y, to) * x.y};
}

// A from dot products: times left[i] r[j] e^(G_i - G_j), and zero where j is not before i.
__device__ __forceinline__ void scale_keys(const float2* products, const float* r, int key_tiles, int lane,
                                           Scratch& w) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll 1
  for (int a = 0; a < key_tiles; a++) {
    const int i = 8 * a + g;
#pragma unroll 1
    for (int b = 0; b <= a; b++) {
      const int j = 8 * b + 2 * t, tile = Segment::of_keys(a, b);
      const float2 x = scaled(products[tile * 32 + lane], w.left[i], w.G[i], r, j, w);
      reinterpret_cast<float2*>(w.A)[tile * 32 + lane] = {j < i ? x.x : 0, j + 1 < i ? x.y : 0};
    }
  }
}

// x (I + A) = x for the columns of key tile b and before, the last of them first. Lane (g, t) holds row g of 8 at
// columns 8m+2t, 8m+2t+1; `last` is the last column that may be other than 0 in its row.
template <int b>
__device__ __forceinline__ void solve(float (&x)[2 * kKeyTiles], int last, int keys, const float* A, int lane) {
#pragma unroll 1
  for (int i = min(8 * b + 7, keys - 1); i >= 8 * b; i--) {
    const float2* row = reinterpret_cast<const float2*>(A) + Segment::of_keys(b, 0) * 32 + i % 8 * 4 + lane % 4;
    const float d = __shfl_sync(~0u, i % 2 ? x[2 * b + 1] : x[2 * b], (lane & ~3) | (i % 8 / 2));
    const bool reached = i <= last;
#pragma unroll
    for (int m = 0; m <= b; m++) {
      const float2 a = row[32 * m];
      x[2 * m] = reached ? fmaf(-d, a.x, x[2 * m]) : x[2 * m];
      x[2 * m + 1] = reached ? fmaf(-d, a.y, x[2 * m + 1]) : x[2 * m + 1];
    }
  }
  if constexpr (b > 0) solve<b - 1>(x, last, keys, A, lane);
}

// Sums of the gates, and the coefficients of single tokens.
__device__ __forceinline__ void prepare_tokens(const Segment& s, const Gates& gates, const float* r, const float* q,
                                               int lane, Scratch& w, Coefficients& out) {
  const float g = of_key(gates.g, s.first + lane), b = of_key(gates.beta, s.first + lane);
  // The least decay that is told from none at all; -inf would make differences of sums NaN.
  const float gate = lane < s.keys ? g : 0, beta = lane < s.keys ? b : 0;
  const double G = inclusive_sum((gate < -1e6f ? -1e6f : gate) * 1.4426950408889634, s.keys, lane);
  const double total = __shfl_sync(~0u, G, s.keys - 1);
  const float left = lane < s.keys ? beta * r[lane] : 0;
  w.G[lane] = G, w.left[lane] = left;
  __syncwarp();
  if (lane < s.keys) out.key[lane] = left * decay(0, G), out.beta[lane] = beta;
  if (lane < s.queries) out.query[lane] = q[lane] * decay(0, w.G[s.window + lane]);
  if (lane == 0) out.total = decay(0, total);
}

// 8 rows of P from W's dot products, or of what makes corrections, as fragments a key tile, `stride` bytes apart: `row`
// is the lane's, a query, or the key of the diagonal.
template <bool kQueries>
__device__ __forceinline__ void solve_rows(const Segment& s, int row, const float2* products, const float* r,
                                           const float* q, char* fragments, int stride, int lane, const Scratch& w) {
  const int kt = s.key_tiles(), t = lane % 4, last = kQueries ? s.window + row : row;
  const float factor = kQueries ? q[row] : r[row] * decay(w.G[row], w.G[s.keys - 1]);
  float x[2 * kKeyTiles];
#pragma unroll
  for (int b = 0; b < kKeyTiles; b++) {
    const int j = 8 * b + 2 * t;
    float2 pair{0, 0};
    if (!kQueries) {
      pair = {j == row ? factor : 0, j + 1 == row ? factor : 0};
    } else if (b < kt) {
      pair = scaled(products[b * 32 + lane], factor, w.G[last], r, j, w);
      pair = {j <= last ? pair.x : 0, j < last ? pair.y : 0};
    }
    x[2 * b] = pair.x, x[2 * b + 1] = pair.y;
  }
  solve<kKeyTiles - 1>(x, last, s.keys, w.A, lane);
#pragma unroll
  for (int b = 0; b < kKeyTiles; b++) {
    if (b < kt) store_fragment(fragments + b * stride, lane, x[2 * b], x[2 * b + 1]);
  }
}

// Dot products of a segment's keys with each other, as far as they are asked for, and of its queries with its keys;
// norms from those of tokens with themselves. All warps of the block share the work: `job` counts it over segments.
__device__ __forceinline__ void multiply(const VerifyParams& p, const Segment& s, const Unit& unit, char* tokens,
                                         int warp, int lane, int& job) {
  const int kt = s.key_tiles(), qt = s.query_tiles(), g = lane / 4, t = lane % 4;
  const char *keys = tokens + s.first * kKeyPitch, *queries = tokens + unit.queries() + s.query * kKeyPitch;
  auto& norms = *reinterpret_cast<Norms*>(tokens + unit.norms());
  float2* const products = reinterpret_cast<float2*>(tokens + s.products);
  const auto tile = [&](int b) { return b < kt ? rows_of(keys, s.keys, b) : rows_of(queries, s.queries, b - kt); };
  // Of a product of the tile with itself: that of the lane's row with itself.
  const auto norm = [&](float even, float odd) {
    const float x = g % 2 ? odd : even;
    return p.l2 ? inverse_root(x + 1e-6f) : 1.0f;
  };
  const auto put = [&](int row_tile, int column, float2 x) {
    if (row_tile >= kt) {
      products[s.of_queries(row_tile - kt, column) * 32 + lane] = x;
    } else if (column <= row_tile) {
      products[Segment::of_keys(row_tile, column) * 32 + lane] = x;
      if (row_tile == column && t == g / 2 && 8 * column + g < s.keys)
        norms.r[s.first + 8 * column + g] = norm(x.x, x.y);
    }
  };
#pragma unroll 1
  for (int b = 0; b < kt + qt; b += 2) {
    const int next = min(b + 1, kt + qt - 1);
#pragma unroll 1
    for (int column = 0; column < min(b + 2, kt); column++) {
      if (job++ % kWarps != warp) continue;
      float d[4];
      dots(rows_place(tile(b), tile(next), lane), columns_place(tile(column), lane), d);
      put(b, column, {d[0], d[1]});
      if (next > b) put(next, column, {d[2], d[3]});
    }
  }
#pragma unroll 1
  for (int u = 0; u < qt; u++) {
    if (job++ % kWarps != warp) continue;
    float d[4];
    dots(rows_place(tile(kt + u), tile(kt + u), lane), columns_place(tile(kt + u), lane), d);
    if (t == g / 2 && 8 * u + g < s.queries) norms.q[s.query + 8 * u + g] = p.scale * norm(d[0], d[1]);
  }
}

// A segment of a head, by a warp, once the dot products are there.
__device__ __forceinline__ void prepare_segment(const Segment& s, const Unit& unit, const char* tokens,
                                                const Gates& gates, int lane, Scratch& w, char* block) {
  const auto& norms = *reinterpret_cast<const Norms*>(tokens + unit.norms());
  const float *r = norms.r + s.first, *q = norms.q + s.query;
  const float2* products = reinterpret_cast<const float2*>(tokens + s.products);
  const int kt = s.key_tiles(), qt = s.query_tiles(), g = lane / 4;
  prepare_tokens(s, gates, r, q, lane, w, *reinterpret_cast<Coefficients*>(block));
  scale_keys(products, r, kt, lane, w);
  __syncwarp();
#pragma unroll 1
  for (int u = 0; u < qt; u++)
    solve_rows<true>(s, 8 * u + g, products + s.of_queries(u, 0) * 32, r, q, block + s.outputs(0, u), qt * kFragment,
                     lane, w);
#pragma unroll 1
  for (int u = 0; s.update && u < kt; u++)
    solve_rows<false>(s, 8 * u + g, nullptr, r, q, block + s.corrections(0, u), kt * kFragment, lane, w);
  __syncwarp();
}

}  // namespace prepare

}  // namespace deltaring::cuda
