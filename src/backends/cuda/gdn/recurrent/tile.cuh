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
  const int64_t id = blockIdx.x, parts = a.plan.parts, Hv = a.checkpoint.shape[1], head = id / parts % Hv;
  return {.b = static_cast<int32_t>(id / parts / Hv),
          .head = head,
          .key_head = head / (Hv / a.Hk),
          .v0 = id % parts * kBlockRows};
}

// k^ and q^ with zeros behind K; decays e^g with ones behind K.
template <int kElements, bool kChannels>
struct Tile {
  static constexpr int kWidth = kElements * kGroupLanes;
  alignas(16) float k[kTile][kWidth];
  alignas(16) float q[kTile][kWidth];
  alignas(16) float decay[kTile][kChannels ? kWidth : 1];
  float v[kTile][kBlockRows];
  float beta[kTile];
};

// One token as it is stored: a record, or a token of the window.
struct Stored {
  const void *q, *k;  // [K]; q null for a record
  const void* v;      // [V]
  const void* g;      // [G]
  const void* beta;
  DType vectors, gates;  // their dtypes
  bool raw;              // g and beta are a and b
};

__device__ inline Stored record_at(const RecurrentArgs& a, const Part& part, const Row& row, int64_t p) {
  const int64_t slot = p % a.rules.R;
  return {.q = nullptr,
          .k = address_in(a.record_k, row.seat, part.key_head, slot),
          .v = address_in(a.record_v, row.seat, part.head, slot),
          .g = address_in(a.record_g, row.seat, part.head, slot),
          .beta = address_in(a.record_beta, row.seat, part.head, slot),
          .vectors = a.record,
          .gates = DType::f32,
          .raw = false};
}

__device__ inline Stored token_at(const RecurrentArgs& a, const Part& part, int64_t token) {
  return {.q = address_in(a.q, token, part.key_head),
          .k = address_in(a.k, token, part.key_head),
          .v = address_in(a.v, token, part.head),
          .g = address_in(a.g, token, part.head),
          .beta = address_in(a.beta, token, part.head),
          .vectors = a.k.dtype,
          .gates = a.g.dtype,
          .raw = a.gates.A_log != nullptr};
}

// A vector [K] into `to` by one warp, as it reads back from `stored`: over its length under l2, times scale. One order
// of sums, whatever else the launch does.
template <int kWidth>
__device__ void put_vector(const void* x, DType t, DType stored, int64_t K, QkNorm norm, float scale, float* to) {
  constexpr int kCount = kWidth / 32;
  const int lane = threadIdx.x % 32;
  float e[kCount], squares = 0, factor = scale;
#pragma unroll
  for (int j = 0; j < kCount; j++) {
    e[j] = lane + 32 * j < K ? rounded(stored, load(x, t, lane + 32 * j)) : 0.0f;
    squares = fmaf(e[j], e[j], squares);
  }
  if (norm == QkNorm::l2) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, d));
    factor = __fdiv_rn(scale, __fsqrt_rn(__fadd_rn(squares, 1e-6f)));
  }
#pragma unroll
  for (int j = 0; j < kCount; j++) to[lane + 32 * j] = __fmul_rn(e[j], factor);
}

__device__ inline float decay_of(const RecurrentArgs& a, const Part& part, const Stored& x, int64_t channel) {
  const float g = load(x.g, x.gates, channel);
  return expf(x.raw ? log_decay(a.gates.A_log[part.head], a.gates.dt_bias[part.head * a.G + channel], g) : g);
}

// One token into row t of the tile, by one warp.
template <int kElements, bool kChannels>
__device__ void put_token(const RecurrentArgs& a, const Part& part, const Stored& x, int t,
                          Tile<kElements, kChannels>& tile) {
  constexpr int kWidth = Tile<kElements, kChannels>::kWidth;
  const int64_t V = a.checkpoint.shape[2], K = a.checkpoint.shape[3];
  const int lane = threadIdx.x % 32;
  put_vector<kWidth>(x.k, x.vectors, a.record, K, a.norm, 1.0f, tile.k[t]);
  if (x.q) put_vector<kWidth>(x.q, x.vectors, DType::f32, K, a.norm, a.scale, tile.q[t]);
  if constexpr (kChannels) {
    for (int e = lane; e < kWidth; e += 32) tile.decay[t][e] = e < K ? decay_of(a, part, x, e) : 1.0f;
  } else if (lane == 0) {
    tile.decay[t][0] = decay_of(a, part, x, 0);
  }
  for (int r = lane; r < kBlockRows; r += 32)
    tile.v[t][r] = part.v0 + r < V ? rounded(a.record, load(x.v, x.vectors, part.v0 + r)) : 0.0f;
  if (lane == 0) {
    const float beta = load(x.beta, x.gates, 0);
    tile.beta[t] = x.raw ? sigmoid(beta) : beta;
  }
}

}  // namespace deltaring::cuda
