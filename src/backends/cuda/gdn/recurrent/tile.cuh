// Tokens made ready in shared memory for the rows of a state that a block walks through them.
#pragma once
#include "backends/cuda/device/element.cuh"
#include "backends/cuda/device/gates.cuh"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/gdn/recurrent/launch.h"

namespace deltaring::cuda {

// What a block computes: rows [v0, v0 + kBlockRows) of one head of row b.
struct Part {
  int32_t b;
  int64_t head, key_head, v0;
};

__device__ inline Part part_of(const RecurrentArgs& a) {
  const uint32_t parts = static_cast<uint32_t>(a.plan.parts), Hv = static_cast<uint32_t>(a.checkpoint.shape[1]),
                 unit = blockIdx.x / parts, b = unit / Hv, head = unit - b * Hv;
  return {.b = static_cast<int32_t>(b),
          .head = head,
          .key_head = head / static_cast<uint32_t>(a.group),
          .v0 = int64_t{blockIdx.x - unit * parts} * kBlockRows};
}

// What an instance of the kernel is: elements of K a lane, the dtype of the state, one decay a key channel or a head.
template <int elements, DType state, bool channels>
struct Form {
  static constexpr DType kState = state;
  static constexpr int kBytes = static_cast<int>(size_of(state)), kChunk = 16 / kBytes;  // neighbours of a lane
  static constexpr int kElements = elements, kWidth = elements * kGroupLanes;
  static constexpr bool kChannels = channels;
  static constexpr int kDecays = channels ? elements : 1;  // of a lane
  static constexpr int kCount = kWidth / 32;               // elements of a vector that a lane brings
  static constexpr int kGates = channels ? kCount : 1;     // likewise
};

// k^ and q^ with zeros behind K; decays e^g with ones behind K.
template <class F>
struct Tile {
  alignas(16) float k[kTile][F::kWidth];
  alignas(16) float q[kTile][F::kWidth];
  alignas(16) float decay[kTile][F::kChannels ? F::kWidth : 1];
  float v[kTile][kBlockRows];
  float beta[kTile];
};

// Where column c of a vector lies in a tile. A lane reads its columns in fours, and those that the lanes of a group
// read at a time are neighbours: no bank is met twice.
template <class F>
__device__ constexpr int place_of(int c) {
  constexpr int kSpan = kGroupLanes * F::kChunk;
  return c / kSpan * kSpan + c % F::kChunk / 4 * (kGroupLanes * 4) + c / F::kChunk % kGroupLanes * 4 + c % 4;
}

// A lane's elements of a vector in a tile.
template <int kElements>
__device__ __forceinline__ void read(const float* row, float (&x)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(row + i * kGroupLanes + threadIdx.x % kGroupLanes * 4);
    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
  }
}

// Where one token is stored: a record, or a token of the window.
struct Stored {
  const void *q, *k;  // [K]; q null for a record
  const void* v;      // the block's rows
  const void* g;      // [G]
  const void* beta;
};

__device__ inline Stored record_at(const RecurrentArgs& a, const Part& part, const Row& row, int64_t p) {
  const int64_t slot = p % a.rules.R;
  return {.q = nullptr,
          .k = address_in(a.record_k, row.seat, part.key_head, slot),
          .v = address_in(a.record_v, row.seat, part.head, slot, part.v0),
          .g = address_in(a.record_g, row.seat, part.head, slot),
          .beta = address_in(a.record_beta, row.seat, part.head, slot)};
}

__device__ inline Stored token_at(const RecurrentArgs& a, const Part& part, int64_t token) {
  return {.q = address_in(a.q, token, part.key_head),
          .k = address_in(a.k, token, part.key_head),
          .v = address_in(a.v, token, part.head, part.v0),
          .g = address_in(a.g, token, part.head),
          .beta = address_in(a.beta, token, part.head)};
}

// One token that a warp has asked for and does not wait for yet: bits of its elements, of a vector's a lane those at
// lane, lane + 32, ...
template <class F>
struct Asked {
  bool window;  // not a record
  uint32_t k[F::kCount], q[F::kCount], v[kBlockRows / 32], g[F::kGates], beta;
  float A_log, dt_bias[F::kGates];
};

// The elements of x [length] that are a lane's, zeros behind its end.
template <int kCount>
__device__ __forceinline__ void ask(const void* x, DType t, int64_t length, uint32_t (&bits)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; j++) {
    const int i = static_cast<int>(threadIdx.x % 32) + 32 * j;
    bits[j] = i < length ? load_bits(x, t, i) : 0;
  }
}

// What `ask` brought, as it reads back from `stored`.
template <int kCount>
__device__ __forceinline__ void values_of(const uint32_t (&bits)[kCount], DType t, DType stored, float (&x)[kCount]) {
  with_dtype(t, [&](auto from) {
#pragma unroll
    for (int j = 0; j < kCount; j++) x[j] = value_of(from, bits[j]);
  });
  with_dtype(stored, [&](auto to) {
#pragma unroll
    for (int j = 0; j < kCount; j++) x[j] = rounded(to, x[j]);
  });
}

// The token at position p of a row.
template <class F>
__device__ __forceinline__ void ask_token(const RecurrentArgs& a, const Part& part, const Row& row, int64_t p,
                                          Asked<F>& token) {
  const int64_t V = a.checkpoint.shape[2], K = a.checkpoint.shape[3];
  token.window = p >= row.first;
  const Stored x = token.window ? token_at(a, part, row.begin + (p - row.first)) : record_at(a, part, row, p);
  const DType vectors = token.window ? a.k.dtype : a.record, gates = token.window ? a.g.dtype : DType::f32;
  ask(x.k, vectors, K, token.k);
  if (token.window) ask(x.q, vectors, K, token.q);
  ask(x.v, vectors, V - part.v0, token.v);
  token.beta = load_bits(x.beta, gates, 0);
  if constexpr (F::kChannels) {
    ask(x.g, gates, K, token.g);
  } else {
    token.g[0] = load_bits(x.g, gates, 0);
  }
  if (!token.window || !a.gates.A_log) return;
  token.A_log = a.gates.A_log[part.head];
  const float* dt_bias = a.gates.dt_bias + part.head * a.G;
#pragma unroll
  for (int j = 0; j < F::kGates; j++) {
    const int i = F::kChannels ? static_cast<int>(threadIdx.x % 32) + 32 * j : 0;
    if (i < a.G) token.dt_bias[j] = dt_bias[i];
  }
}

// The token into row t of the tile. A vector's sum of squares has one order, whatever else the launch does.
template <class F>
__device__ __forceinline__ void put_token(const RecurrentArgs& a, const Asked<F>& token, int t, Tile<F>& tile) {
  constexpr int kCount = F::kCount;
  const int lane = threadIdx.x % 32;
  const DType vectors = token.window ? a.k.dtype : a.record, gates = token.window ? a.g.dtype : DType::f32;
  const bool raw = token.window && a.gates.A_log;

  float k[kCount], q[kCount], k_squares = 0, q_squares = 0, k_scale = 1, q_scale = a.scale;
  values_of(token.k, vectors, a.record, k);
  if (token.window) values_of(token.q, vectors, DType::f32, q);
#pragma unroll
  for (int j = 0; j < kCount; j++) {
    if (!token.window) q[j] = 0;
    k_squares = fmaf(k[j], k[j], k_squares), q_squares = fmaf(q[j], q[j], q_squares);
  }
  if (a.norm == QkNorm::l2) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      k_squares = __fadd_rn(k_squares, __shfl_xor_sync(~0u, k_squares, d));
      q_squares = __fadd_rn(q_squares, __shfl_xor_sync(~0u, q_squares, d));
    }
    k_scale = __fdiv_rn(k_scale, __fsqrt_rn(__fadd_rn(k_squares, 1e-6f)));
    q_scale = __fdiv_rn(q_scale, __fsqrt_rn(__fadd_rn(q_squares, 1e-6f)));
  }
#pragma unroll
  for (int j = 0; j < kCount; j++) {
    tile.k[t][place_of<F>(lane + 32 * j)] = __fmul_rn(k[j], k_scale);
    tile.q[t][place_of<F>(lane + 32 * j)] = __fmul_rn(q[j], q_scale);
  }

  float v[kBlockRows / 32];
  values_of(token.v, vectors, a.record, v);
#pragma unroll
  for (int j = 0; j < kBlockRows / 32; j++) tile.v[t][lane + 32 * j] = v[j];

#pragma unroll
  for (int j = 0; j < F::kGates; j++) {
    const float g = value_of(gates, token.g[j]);
    const float decay = expf(raw ? log_decay(token.A_log, token.dt_bias[j], g) : g);
    if constexpr (F::kChannels) {
      tile.decay[t][place_of<F>(lane + 32 * j)] = lane + 32 * j < a.G ? decay : 1.0f;
    } else if (lane == 0) {
      tile.decay[t][0] = decay;
    }
  }
  const float beta = value_of(gates, token.beta);
  if (lane == 0) tile.beta[t] = raw ? sigmoid(beta) : beta;
}

}  // namespace deltaring::cuda
