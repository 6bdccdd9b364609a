// The state behind a segment: what a fold makes of a warp's stripes, sixteen rows of V each, in its tile.
#pragma once
#include <cstddef>

#include "backends/cuda/gdn/verify/state_tile.cuh"

namespace deltaring::cuda::consume {

// Where a lane stands.
struct Place {
  int lane, g, t;
  int head;             // of the unit
  int V;                // the lane's first row of the head; the next stripe's is 16 further
  uint32_t state;       // its place in the first stripe
  uint32_t values;      // and in the first stripe's v of key 2t
  Rows8 keys, queries;  // of the segment
  uint32_t block;       // the segment's coefficients

  // Of columns 8b + 2t and the next.
  __device__ __forceinline__ float2 pair(size_t member, int b) const {
    return load_pair(block + static_cast<uint32_t>(member) + 32 * b + 8 * t);
  }
  __device__ __forceinline__ Factor factor(int tile) const { return Factor(load_pair(block + tile + 8 * lane)); }
};

// What a fold adds to M stripes: U of KT tiles of keys, in whole sixteens; columns 2t and 2t+1 of a tile for rows v (0,
// 1) and v+1 (2, 3).
template <int M, int KT>
using Corrections = float[M][(KT + 1) / 2 * 2][4];

// S <- e^G S + U k^T, rounded to the state's dtype, of M stripes and KT key tiles.
template <class Quad, int M, int KT>
__device__ __forceinline__ void fold(const Corrections<M, KT>& u, const Place& at) {
  constexpr int kSixteens = (KT + 1) / 2, kLoads = KT == 1 ? 1 : 2;
  const float total = __uint_as_float(load_word(at.block + offsetof(Coefficients, total)));
  // Lanes 8i + r read row r of keys: of the first eight for four tiles of channels, or of both eights for two.
  uint32_t keys[kSixteens];
#pragma unroll
  for (int i = 0; i < kSixteens; i++) {
    const int tile = KT == 1 ? 0 : 2 * i + at.lane / 8 % 2;
    const Rows8 rows = at.keys.tile(KT % 2 ? min(tile, KT - 1) : tile);
    keys[i] = rows.at(at.lane % 8, KT == 1 ? at.lane / 8 : at.lane / 16);
  }
#pragma unroll
  for (int m = 0; m < M; m++) {
    const uint32_t stripe = at.state + 16 * m * kHead * Quad::kBytes;
    Bf16Parts low[kSixteens], high[kSixteens];
#pragma unroll
    for (int i = 0; i < kSixteens; i++) low[i] = Bf16Parts(u[m][2 * i]), high[i] = Bf16Parts(u[m][2 * i + 1]);
#pragma unroll 1
    for (int step = 0; step < kSteps; step += 2) {
      uint32_t k[kSixteens][kLoads][4];
      Quad quads[2];
#pragma unroll
      for (int i = 0; i < kSixteens * kLoads; i++)
        load_matrices_transposed(k[i / kLoads][i % kLoads], keys[i / kLoads] + 32 * (step + i % kLoads));
#pragma unroll
      for (int i = 0; i < 2; i++) quads[i].load(stripe, step + i);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        Quad& quad = quads[i / 2];
        const int pair = i % 2;
        const float2 even = quad.pair(2 * pair), odd = quad.pair(2 * pair + 1);
        float x[4] = {even.x * total, even.y * total, odd.x * total, odd.y * total};
        if constexpr (KT > 1) {
#pragma unroll
          for (int j = 0; j < kSixteens; j++) {
            // A part of sixteen keys at a time.
            const auto part = [&](const uint32_t(&a)[4], const uint32_t(&b)[4], int first) {
              const auto& columns = k[j][i / 2];
              mma_bf16(x, {a[first], a[first + 1], b[first], b[first + 1]}, columns[2 * pair], columns[2 * pair + 1]);
            };
            part(low[j].low_high, high[j].low_high, 0);
            part(low[j].high_middle, high[j].high_middle, 2);
            part(low[j].high_middle, high[j].high_middle, 0);
          }
        } else {
          mma_bf16(x, low[0].low_high, k[0][0][i], 0);
          mma_bf16(x, low[0].high_middle, k[0][0][i], k[0][0][i]);
        }
        quad.set(2 * pair, x[0], x[1]), quad.set(2 * pair + 1, x[2], x[3]);
      }
#pragma unroll
      for (int i = 0; i < 2; i++) quads[i].store(stripe, step + i);
    }
  }
}

}  // namespace deltaring::cuda::consume
