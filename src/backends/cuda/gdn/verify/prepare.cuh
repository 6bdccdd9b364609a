// What the tokens of a segment mean to each other, by one warp: gates, norms, the triangular system and its solution.
//
// With r = 1/|k|, G the sums of g, A[i, j] = beta_i r_i r_j e^(G_i-G_j) k_i.k_j (j < i) the corrections are
// D = (I + A)^-1 R with R_i = beta_i v_i - beta_i e^(G_i) r_i S k_i, which the state's owner computes. Here:
//   outputs      o_c += sum_j P[c, j] R_j,  P = W (I + A)^-1,  W[c, j] = e^(G_c-G_j) scale r_j /|q_c| q_c.k_j (j <= c)
//   corrections  U_i = e^(Gtotal-G_i) r_i D_i, which the fold adds as U k^T
// P (I + A) = W is solved from the right, a row a lane, so row c sees rows <= c of A and nothing later.
// beta in [0, 1] and |k^| = 1 bound (I + A)^-1 by 1.
#pragma once
#include "backends/cuda/device/element.cuh"
#include "backends/cuda/device/gates.cuh"
#include "backends/cuda/gdn/verify/fragments.cuh"
#include "backends/cuda/gdn/verify/units.h"

namespace deltaring::cuda {

// A sum of gates in two f32: differences of rounded sums would lose what a strong gate leaves.
struct alignas(8) Sum {
  float high, low;
};

// What a warp prepares a head in, in shared memory.
struct alignas(16) Scratch {
  Sum G[8 * kKeyTiles];       // log2 of the decay up to a key
  float left[8 * kKeyTiles];  // beta / |k|
  float A[];                  // tiles [8, 8] of the lower triangle; zeros on the diagonal and above
};

namespace prepare {

// A key's gates on their way from memory, as they are stored: records f32, tokens of gate_dtype.
struct RawGate {
  uint32_t g, beta;
  float rate, bias;  // A_log, dt_bias
};
struct Gate {
  float g, beta;
};

// Where a key's gates are; nowhere, of a key that the unit does not have. Made without reading any.
struct GateAt {
  const char *g, *beta;
  bool f32;
  GateAt() = default;
  __device__ __forceinline__ GateAt(const VerifyParams& p, const Unit& unit, int head, int key) : g{}, beta{} {
    f32 = key < unit.records || p.gate_dtype == DType::f32;
    const int size = f32 ? 4 : 2;
    if (key < unit.records) {
      const int slot = slot_of(p, unit, key);
      g = reinterpret_cast<const char*>(p.record_g + ring_at(p.g_at, unit, head, slot));
      beta = reinterpret_cast<const char*>(p.record_beta + ring_at(p.beta_at, unit, head, slot));
    } else if (key < unit.keys()) {
      const int token = unit.token + key - unit.n;
      g = static_cast<const char*>(p.g) + token_at(token, p.g_token, head, p.g_head) * size;
      beta = static_cast<const char*>(p.beta) + token_at(token, p.beta_token, head, p.beta_head) * size;
    }
  }
};

// Only loads.
__device__ __forceinline__ RawGate fetch_gate(const VerifyParams& p, const GateAt& at, int head) {
  RawGate x{};
  if (at.g) {
    if (at.f32) {
      x.g = *reinterpret_cast<const uint32_t*>(at.g), x.beta = *reinterpret_cast<const uint32_t*>(at.beta);
    } else {
      x.g = *reinterpret_cast<const uint16_t*>(at.g), x.beta = *reinterpret_cast<const uint16_t*>(at.beta);
    }
  }
  if (p.A_log) x.rate = p.A_log[head], x.bias = p.dt_bias[head];
  return x;
}

// Behind what was fetched; with `append`, a window key's into its record as well.
__device__ __forceinline__ Gate settle_gate(const VerifyParams& p, const Unit& unit, int head, int key,
                                            const RawGate& x, bool append) {
  if (key < unit.records) return {__uint_as_float(x.g), __uint_as_float(x.beta)};
  Gate gate{value_of(p.gate_dtype, x.g), value_of(p.gate_dtype, x.beta)};
  if (p.A_log) gate = {log_decay(x.rate, x.bias, gate.g), sigmoid(gate.beta)};
  if (append && key >= unit.n && key < unit.keys()) {
    const int slot = slot_of(p, unit, key);
    p.record_g[ring_at(p.g_at, unit, head, slot)] = gate.g;
    p.record_beta[ring_at(p.beta_at, unit, head, slot)] = gate.beta;
  }
  return gate;
}

// Of key first + lane, when each lane has those of keys `lane` and 32 + lane.
__device__ __forceinline__ Gate gate_of(const Unit& unit, int first, const Gate& own, const Gate& behind, int lane) {
  const int key = first + lane;
  Gate gate{__shfl_sync(~0u, own.g, key & 31), __shfl_sync(~0u, own.beta, key & 31)};
  if (unit.keys() > 32) {
    const float g = __shfl_sync(~0u, behind.g, key & 31), beta = __shfl_sync(~0u, behind.beta, key & 31);
    if (key >= 32) gate = {g, beta};
  }
  return gate;
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
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
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

// a + b: exact but for the rounding of `low`, 2^-48 of the sum.
__device__ __forceinline__ Sum add(Sum a, Sum b) {
  const float sum = a.high + b.high, part = sum - a.high;
  const float low = ((a.high - (sum - part)) + (b.high - part)) + (a.low + b.low), high = sum + low;
  return {high, low - (high - sum)};
}

// Of the first `count` lanes; what a lane gets depends on those before it alone.
__device__ __forceinline__ Sum inclusive_sum(Sum x, int count, int lane) {
#pragma unroll 1
  for (int step = 1; step < count; step *= 2) {
    const Sum before{__shfl_up_sync(~0u, x.high, step), __shfl_up_sync(~0u, x.low, step)};
    const Sum sum = add(x, before);
    if (lane >= step) x = sum;
  }
  return x;
}

// What is below the least normal number is 0.
__device__ __forceinline__ float decay(Sum from, Sum to) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"((to.high - from.high) + (to.low - from.low)));
  return y;
}

// Sums of the gates, and the coefficients of single tokens.
__device__ __forceinline__ void prepare_tokens(const Segment& s, const Gate& of_lane, const float* r, const float* q,
                                               int lane, Scratch& w, Coefficients& out) {
  // The least decay that is told from none at all; -inf would make differences of sums NaN.
  const float gate = lane < s.keys ? of_lane.g : 0, beta = lane < s.keys ? of_lane.beta : 0;
  constexpr float kLog2e = 1.44269502f, kRest = 1.92596303e-8f;  // of 1.44269504088896 in two f32
  const float limited = gate < -1e6f ? -1e6f : gate, high = limited * kLog2e;
  const Sum G = inclusive_sum({high, fmaf(limited, kRest, fmaf(limited, kLog2e, -high))}, s.keys, lane);
  const float left = lane < s.keys ? beta * r[lane] : 0;
  w.G[lane] = G, w.left[lane] = left;
  const float whole = decay({}, G), of_query = __shfl_sync(~0u, whole, s.window + lane);
  if (lane < s.keys) out.key[lane] = left * whole, out.beta[lane] = beta;
  if (lane < s.queries) out.query[lane] = q[lane] * of_query;
  if (lane == s.keys - 1) out.total = whole;
  __syncwarp();
}

// A and W from dot products, a tile at a time: times left[i] or q[c], r[j] and e^(G_i - G_j), and zero where key j is
// not before key i or is behind query c. A goes to the scratch, W to where P will be.
__device__ __forceinline__ void scale(const Segment& s, const float2* products, const float* r, const float* q,
                                      char* block, int lane, Scratch& w) {
  const int kt = s.key_tiles(), qt = s.query_tiles(), g = lane / 4, t = lane % 4;
  products += lane;
#pragma unroll 1
  for (int a = 0; a < kt + qt; a++) {
    const bool query = a >= kt;
    const int u = a - kt, row = 8 * (query ? u : a) + g;
    const float factor = query ? q[row] : w.left[row];
    const Sum to = w.G[query ? s.window + row : row];
    float2* tile = query ? reinterpret_cast<float2*>(block + Segment::outputs(0, u, qt))
                         : reinterpret_cast<float2*>(w.A) + Segment::of_keys(a, 0) * 32;
    tile += lane;
    const int tiles = query ? kt : a + 1, stride = (query ? qt : 1) * 32;
    int before = (query ? s.window + row + 1 : row) - 2 * t;  // keys from the lane's first on that the row sees
#pragma unroll 1
    for (int j = 2 * t; j < 8 * tiles; j += 8, before -= 8, products += 32, tile += stride) {
      const float4 from = *reinterpret_cast<const float4*>(&w.G[j]);
      const float2 x = *products, norm = *reinterpret_cast<const float2*>(&r[j]);
      const float even = factor * norm.x * decay({from.x, from.y}, to) * x.x,
                  odd = factor * norm.y * decay({from.z, from.w}, to) * x.y;
      *tile = {before > 0 ? even : 0, before > 1 ? odd : 0};
    }
  }
}

// x (I + A) = x for the columns of key tile b and before, the last of them first, by a lane: x[last] is the last that
// may be other than 0. Rows of A are read by all lanes, before it is known who needs them, and by this instruction: the
// compiler would have each wait for its turn.
template <int b>
__device__ __forceinline__ void solve(float* x, int last, int key_tiles, uint32_t A) {
  if (b < key_tiles) {
#pragma unroll
    for (int i = 7; i >= 0; i--) {
      const bool reached = 8 * b + i <= last;
#pragma unroll
      for (int j = 0; j < 8 * b + i; j += 4) {
        const float4 a = load_four(A + ((Segment::of_keys(b, j / 8) * 8 + i) * 8 + j % 8) * sizeof(float));
        const float row[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
          if (j + e < 8 * b + i && reached) x[j + e] = fmaf(-x[8 * b + i], row[e], x[j + e]);
        }
      }
    }
  }
  if constexpr (b > 0) solve<b - 1>(x, last, key_tiles, A);
}

// P and Q of a segment from W and A, a row a lane: first queries, then keys, whose W is what a correction is scaled by,
// on the diagonal.
template <int kTiles>
__device__ __forceinline__ void solve_rows(const Segment& s, const float* r, char* block, int lane, const Scratch& w) {
  const int kt = s.key_tiles(), qt = s.query_tiles(), tile = lane / 8, g = lane % 8;
  const bool query = tile < qt, key = !query && s.update && tile < qt + kt;
  // Rows of a last tile of keys that stand for none are zeros: a fold adds whole tiles.
  const int row = query ? lane : lane - 8 * qt, last = query ? s.window + row : key && row < s.keys ? row : -1;
  char* const rows =
      block + (query ? Segment::outputs(0, tile, qt) : Segment::corrections(0, tile - qt, kt, qt)) + g * 32;
  const int stride = (query ? qt : kt) * kNumberTile;
  if (key) {
#pragma unroll 1
    for (int b = 0; b < kt; b++) {
      const auto to = reinterpret_cast<float4*>(rows + b * stride);
      to[0] = to[1] = {};
    }
    const float factor = row < s.keys ? r[row] * decay(w.G[row], w.G[s.keys - 1]) : 0;
    reinterpret_cast<float*>(rows + (tile - qt) * stride)[g] = factor;
  }
  float x[8 * kTiles];
#pragma unroll
  for (int b = 0; b < kTiles; b++) {
    float4 part[2] = {};
    if (b < kt && (query || key)) {
      const auto from = reinterpret_cast<const float4*>(rows + b * stride);
      part[0] = from[0], part[1] = from[1];
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int j = 8 * b + 4 * i;
      x[j] = part[i].x, x[j + 1] = part[i].y, x[j + 2] = part[i].z, x[j + 3] = part[i].w;
    }
  }
  __syncwarp();
  solve<kTiles - 1>(x, last, kt, shared_address(w.A));
  if (!query && !key) return;
#pragma unroll
  for (int b = 0; b < kTiles; b++) {
    if (b >= kt) break;
    const auto to = reinterpret_cast<float4*>(rows + b * stride);
#pragma unroll
    for (int i = 0; i < 2; i++)
      to[i] = {x[8 * b + 4 * i], x[8 * b + 4 * i + 1], x[8 * b + 4 * i + 2], x[8 * b + 4 * i + 3]};
  }
}

// Which warp does which job: the `idle` last, who settle no head's gates, are first, and twice.
struct Turns {
  unsigned idle;
  constexpr int warp_of(unsigned job) const {
    return kWarps - 1 - static_cast<int>(job < 2 * idle ? (job < idle ? job : job - idle) : job % kWarps);
  }
  // The first job of a warp.
  constexpr unsigned first(int warp) const {
    const unsigned turn = kWarps - 1 - warp;
    return turn < idle ? turn : 2 * idle + (turn - 2 * idle) % kWarps;
  }
};

static_assert([] {
  for (unsigned idle = 0; idle < kWarps; idle++) {
    for (int warp = 0; warp < kWarps; warp++) {
      const Turns turns{idle};
      unsigned job = 0;
      while (turns.warp_of(job) != warp) job++;
      if (turns.first(warp) != job) return false;
    }
  }
  return true;
}());

// Dot products of a segment's keys with each other, as far as they are asked for, and of its queries with its keys;
// norms from those of tokens with themselves. All warps of the block share the work (Turns): `job` counts it over
// segments.
__device__ __forceinline__ void multiply(const VerifyParams& p, const Segment& s, char* room, char* norms_at, int warp,
                                         int lane, const Turns& turns, unsigned& job) {
  const int kt = s.key_tiles(), qt = s.query_tiles(), g = lane / 4, t = lane % 4;
  const Rows8 keys{shared_address(room + s.keys_at), s.keys}, queries{shared_address(room + s.queries_at), s.queries};
  auto& norms = *reinterpret_cast<Norms*>(norms_at);
  float2* const products = reinterpret_cast<float2*>(room + s.products);
  const auto mine = [&] { return turns.warp_of(job++) == warp; };
  const auto tile = [&](int b) { return b < kt ? keys.tile(b) : queries.tile(b - kt); };
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
        norms.r[s.norms_at() + 8 * column + g] = norm(x.x, x.y);
    }
  };
#pragma unroll 1
  for (int b = 0; b < kt + qt; b += 2) {
    const int next = min(b + 1, kt + qt - 1);
#pragma unroll 1
    for (int column = 0; column < min(b + 2, kt); column++) {
      if (!mine()) continue;
      float d[4];
      dots(rows_place(tile(b), tile(next), lane), columns_place(tile(column), lane), d);
      put(b, column, {d[0], d[1]});
      if (next > b) put(next, column, {d[2], d[3]});
    }
  }
#pragma unroll 1
  for (int u = 0; u < qt; u++) {
    if (!mine()) continue;
    float d[4];
    dots(rows_place(tile(kt + u), tile(kt + u), lane), columns_place(tile(kt + u), lane), d);
    if (t == g / 2 && 8 * u + g < s.queries) norms.q[s.query + 8 * u + g] = p.scale * norm(d[0], d[1]);
  }
}

// A segment of a head, by a warp, once the dot products are there; each lane has the gate of its key.
template <int kTiles>
__device__ __forceinline__ void prepare_segment(const Segment& s, const char* room, const char* norms_at,
                                                const Gate& gate, int lane, Scratch& w, char* block) {
  const auto& norms = *reinterpret_cast<const Norms*>(norms_at);
  const float *r = norms.r + s.norms_at(), *q = norms.q + s.query;
  prepare_tokens(s, gate, r, q, lane, w, *reinterpret_cast<Coefficients*>(block));
  scale(s, reinterpret_cast<const float2*>(room + s.products), r, q, block, lane, w);
  __syncwarp();
  solve_rows<kTiles>(s, r, block, lane, w);
  __syncwarp();
}

}  // namespace prepare

}  // namespace deltaring::cuda
