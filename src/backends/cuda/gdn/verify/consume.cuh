// What a state makes of the prepared tokens. A warp takes M tiles of sixteen rows of V; nothing but barriers at the
// ends.
#pragma once
#include <type_traits>

#include "backends/cuda/gdn/verify/prepare.cuh"
#include "backends/cuda/gdn/verify/state_rows.cuh"

namespace deltaring::cuda {

namespace consume {

// Where a warp stands: its rows of V, its lane, its head in shared memory.
template <int kSlices>
struct Place {
  static constexpr int kPitch = value_pitch(kSlices);
  int v;      // the lane's first row in the slice; the next tile's is 16 further
  int slice;  // which holds rows [slice, slice + 1) V / kSlices
  int lane, g, t, head;
  const char *keys, *queries, *values;  // the segment's first rows
  const char* block;                    // its coefficients
  char* state;                          // the lane's first row at channel 8t

  // The lane's first row in the head.
  __device__ int V() const { return kSlices == 1 ? v : slice * (kHead / kSlices) + v; }
};

// Columns 2t and 2t+1 of KT + QT tiles of 8 columns, keys then queries, for rows v (0, 1) and v+1 (2, 3) of M tiles.
template <int M, int KT, int QT>
using Columns = float[M][KT + QT][4];

// S k_j and S q_c. k and q are bf16 as they came and S is split exactly: f32 sums of exact products.
template <int M, int KT, int QT, class Chunk, int kSlices>
__device__ __forceinline__ void project(const Place<kSlices>& at, Columns<M, KT, QT>& d) {
  const int offset = at.g * kKeyPitch + at.t * 16;
#pragma unroll 2
  for (int c = 0; c < kChunks; c++) {
    uint4 x[KT + QT];
#pragma unroll
    for (int b = 0; b < KT + QT; b++) {
      const char* rows = b < KT ? at.keys + 8 * b * kKeyPitch : at.queries + 8 * (b - KT) * kKeyPitch;
      x[b] = *reinterpret_cast<const uint4*>(rows + offset + 64 * c);
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
      Chunk chunk;
      chunk.load(at.state + 16 * m * kHead * Chunk::kBytes, c);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        uint32_t a[Chunk::kParts][4];
        chunk.parts(h, a);
#pragma unroll
        for (int part = Chunk::kParts - 1; part >= 0; part--) {
#pragma unroll
          for (int b = 0; b < KT + QT; b++) mma_bf16(d[m][b], a[part], h ? x[b].z : x[b].x, h ? x[b].w : x[b].y);
        }
      }
    }
  }
}

// S k_j becomes R_j = beta_j v_j - beta_j e^(G_j) r_j S k_j; zeros behind the last key.
template <int M, int KT, int QT, int kSlices>
__device__ __forceinline__ void residuals(const Place<kSlices>& at, int keys, Columns<M, KT, QT>& d) {
  const auto& c = *reinterpret_cast<const Coefficients*>(at.block);
#pragma unroll
  for (int b = 0; b < KT; b++) {
    const int j = 8 * b + 2 * at.t;
    const float2 key = *reinterpret_cast<const float2*>(&c.key[j]), beta = *reinterpret_cast<const float2*>(&c.beta[j]);
#pragma unroll
    for (int m = 0; m < M; m++) {
      const char* values = at.values + j * at.kPitch + 2 * (at.v + 16 * m);
      const uint32_t v0 = *reinterpret_cast<const uint32_t*>(values);
      const uint32_t v1 = *reinterpret_cast<const uint32_t*>(values + at.kPitch);
      float(&x)[4] = d[m][b];
      x[0] = j < keys ? fmaf(-key.x, x[0], beta.x * bf16_low(v0)) : 0;
      x[1] = j + 1 < keys ? fmaf(-key.y, x[1], beta.y * bf16_low(v1)) : 0;
      x[2] = j < keys ? fmaf(-key.x, x[2], beta.x * bf16_high(v0)) : 0;
      x[3] = j + 1 < keys ? fmaf(-key.y, x[3], beta.y * bf16_high(v1)) : 0;
    }
  }
}

// A product of matrices cannot skip, so residuals that are not finite are taken out of it, and every result at or
// behind the first of them in its row becomes NaN. first[r]: that key for rows v and v+1, or more than any key.
template <int KT, int N>
__device__ __forceinline__ bool contain(int t, float (&d)[N][4], int (&first)[2]) {
  float sum = 0;  // of zeros, unless one is not finite
#pragma unroll
  for (int m = 0; m < 4 * KT; m++) sum = fmaf(d[m / 4][m % 4], 0.0f, sum);
  if (__all_sync(~0u, sum == 0)) return false;
  first[0] = first[1] = 8 * kKeyTiles;
#pragma unroll
  for (int m = 0; m < 4 * KT; m++) {
    float& x = d[m / 4][m % 4];
    if ((__float_as_uint(x) & 0x7f800000u) != 0x7f800000u) continue;
    x = 0;
    first[m % 4 / 2] = min(first[m % 4 / 2], 8 * (m / 4) + 2 * t + m % 2);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    first[r] = min(first[r], __shfl_xor_sync(~0u, first[r], 1));
    first[r] = min(first[r], __shfl_xor_sync(~0u, first[r], 2));
  }
  return true;
}

// 16 columns of residuals or corrections as an A operand in three parts: a tile of 8 and the next, or zeros.
__device__ __forceinline__ void operand(const float (&x)[4], const float (&y)[4], uint32_t (&a)[3][4]) {
#pragma unroll
  for (int m = 0; m < 4; m++) {
    const float(&z)[4] = m < 2 ? x : y;
    uint32_t parts[3];
    split(z[m % 2 * 2], z[m % 2 * 2 + 1], parts);
#pragma unroll
    for (int part = 0; part < 3; part++) a[part][m] = parts[part];
  }
}

// S <- e^G S + U k^T, rounded to the state's dtype; to `stored` as well, if that is not null.
template <int M, class Chunk, int kSlices>
__device__ __forceinline__ void fold(const float (&u)[M][2][4], const Place<kSlices>& at, const Segment& s,
                                     const char* transposed, char* stored) {
  const float total = reinterpret_cast<const Coefficients*>(at.block)->total;
  const auto* pairs = reinterpret_cast<const uint4*>(transposed) + at.lane;
  const bool both = s.keys > 8;
#pragma unroll
  for (int m = 0; m < M; m++) {
    uint32_t a[3][4];
    operand(u[m][0], u[m][1], a);
    const int row = 16 * m * kHead * Chunk::kBytes;
#pragma unroll 1
    for (int c = 0; c < kChunks; c++) {
      const uint4 low = pairs[c * 32], high = both ? pairs[(4 + c) * 32] : uint4{};
      const uint32_t b0[4] = {low.x, low.y, low.z, low.w}, b1[4] = {high.x, high.y, high.z, high.w};
      Chunk chunk;
      chunk.load(at.state + row, c);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float x[4];
        chunk.get(i, x);
        for (float& e : x) e *= total;
#pragma unroll
        for (int part = 2; part >= 0; part--) mma_bf16(x, a[part], b0[i], b1[i]);
        chunk.set(i, x);
      }
      chunk.store(at.state + row, c);
      if (stored) chunk.store(stored + row, c);
    }
  }
}

__device__ __forceinline__ void store_pair(const VerifyParams& p, int64_t at, float low, float high) {
  if (p.out_dtype == DType::f32) {
    *reinterpret_cast<float2*>(static_cast<float*>(p.out) + at) = {low, high};
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.out) + at) =
        p.out_dtype == DType::bf16 ? Bf16Words::pack(low, high) : F16Words::pack(low, high);
  }
}

template <int M, int KT, int QT, int kSlices>
__device__ __forceinline__ void store_outputs(const VerifyParams& p, int token, int queries, const Place<kSlices>& at,
                                              const Columns<M, KT, QT>& d) {
  int64_t to = token_at(token + 2 * at.t, p.out_token, at.head, p.out_head) + at.V();
#pragma unroll
  for (int u = 0; u < 2 * QT; u++) {
#pragma unroll
    for (int m = 0; m < M; m++) {
      // Adding zero makes -0 of an empty state what any other sum of zeros is.
      const float(&x)[4] = d[m][KT + u / 2];
      if (8 * (u / 2) + 2 * at.t + u % 2 < queries) store_pair(p, to + 16 * m, x[u % 2] + 0.0f, x[2 + u % 2] + 0.0f);
    }
    to += u % 2 ? 7 * int64_t{p.out_token} : p.out_token;
  }
}

// The window's v as records.
template <int M, int kSlices>
__device__ __forceinline__ void append_values(const VerifyParams& p, const Unit& unit, const char* values,
                                              const Place<kSlices>& at) {
  uint16_t* ring = p.record_v + ring_at(p.v_at, unit, at.head, 0) + at.V();
#pragma unroll 1
  for (int key = unit.n + at.t; key < unit.keys(); key += 4) {
    uint16_t* to = ring + static_cast<int64_t>(slot_of(p, unit, key)) * p.v_at.row;
#pragma unroll
    for (int m = 0; m < M; m++)
      reinterpret_cast<uint32_t*>(to)[8 * m] =
          *reinterpret_cast<const uint32_t*>(values + key * at.kPitch + 2 * (at.v + 16 * m));
  }
}

// A segment of KT key tiles and QT query tiles. Every instance does the same to a column, whatever stands beside it.
template <int M, int KT, int QT, class Chunk, int kSlices>
__device__ __forceinline__ void consume_segment(const VerifyParams& p, const Unit& unit, const Segment& s,
                                                const Place<kSlices>& at, float (&corrections)[M][2][4]) {
  Columns<M, KT, QT> d = {};
  project<M, KT, QT, Chunk>(at, d);
  residuals<M, KT, QT>(at, s.keys, d);
  int bad[M][2];
  bool contained = false;
#pragma unroll
  for (int m = 0; m < M; m++) {
    bad[m][0] = bad[m][1] = 8 * kKeyTiles;
    contained |= contain<KT>(at.t, d[m], bad[m]);
  }
#pragma unroll
  for (int u = 0; u < QT; u++) {
    const float2 scale =
        *reinterpret_cast<const float2*>(&reinterpret_cast<const Coefficients*>(at.block)->query[8 * u + 2 * at.t]);
#pragma unroll
    for (int m = 0; m < M; m++) {
      float(&x)[4] = d[m][KT + u];
      x[0] *= scale.x, x[1] *= scale.y, x[2] *= scale.x, x[3] *= scale.y;
    }
  }
#pragma unroll
  for (int depth = 0; depth < (KT + 1) / 2; depth++) {
#pragma unroll
    for (int m = 0; m < M; m++) {
      uint32_t a[3][4];
      if (2 * depth + 1 < KT)
        operand(d[m][2 * depth], d[m][2 * depth + 1], a);
      else
        operand(d[m][2 * depth], {}, a);
#pragma unroll
      for (int u = 0; u < QT; u++)
        mma_parts(d[m][KT + u], a, at.block + s.outputs() + (depth * QT + u) * kFragment, at.lane);
      if constexpr (KT <= 2) {
        if (!s.update) continue;
#pragma unroll
        for (int v = 0; v < KT; v++)
          mma_parts(corrections[m][v], a, at.block + s.corrections() + v * kFragment, at.lane);
      }
    }
  }
  if (contained) {
    const float nan = __int_as_float(0x7fffffff);
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int e = 0; e < 4 * QT; e++) {
        if (s.window + 8 * (e / 4) + 2 * at.t + e % 2 >= bad[m][e % 4 / 2]) d[m][KT + e / 4][e % 4] = nan;
      }
#pragma unroll
      for (int e = 0; e < 8; e++) {
        if (bad[m][e % 4 / 2] < 8 * kKeyTiles) corrections[m][e / 4][e % 4] = nan;
      }
    }
  }
  store_outputs<M, KT, QT>(p, unit.token + s.query, s.queries, at, d);
}

}  // namespace consume

// Rows 16 M warp and on of a slice of head `head` of a unit. tokens holds keys, queries and what was prepared, `state`
// the slice and behind it its v. kWide: segments of more than 8 window tokens or more than 24 keys may come.
template <int M, bool kWide, int kSlices, class Chunk>
__device__ __forceinline__ void consume_head(const VerifyParams& p, const Unit& unit, const Segment* segments, int head,
                                             int slice, const char* tokens, char* state, int warp, int lane) {
  consume::Place<kSlices> at{.v = 16 * M * warp + 2 * (lane / 4), .slice = slice, .lane = lane};
  at.g = lane / 4, at.t = lane % 4, at.head = unit.head + head;
  const char* const values = state + kHead * kHead / kSlices * Chunk::kBytes;
  at.state = state + (at.v * kHead + 8 * at.t) * Chunk::kBytes;
  const int own = (at.V() * kHead + 8 * at.t) * Chunk::kBytes;
  consume::append_values<M>(p, unit, values, at);
  const char* coefficients = tokens + unit.coefficients + head * unit.stride;
#pragma unroll 1
  for (int i = 0; i < unit.segments; i++) {
    const Segment& s = segments[i];
    at.keys = tokens + s.first * kKeyPitch, at.queries = tokens + unit.queries() + s.query * kKeyPitch;
    at.values = values + s.first * at.kPitch, at.block = coefficients + s.block;
    float corrections[M][2][4] = {};
    const auto go = [&](auto kt, auto qt) { consume::consume_segment<M, kt, qt, Chunk>(p, unit, s, at, corrections); };
    using std::integral_constant;
    const int shape = 4 * s.key_tiles() + s.query_tiles();
    // The plan's `wide` says which of these there can be.
    switch (shape) {
      case 4:
        go(integral_constant<int, 1>(), integral_constant<int, 0>());
        break;
      case 5:
        go(integral_constant<int, 1>(), integral_constant<int, 1>());
        break;
      case 8:
        go(integral_constant<int, 2>(), integral_constant<int, 0>());
        break;
      case 9:
        go(integral_constant<int, 2>(), integral_constant<int, 1>());
        break;
      case 13:
        go(integral_constant<int, 3>(), integral_constant<int, 1>());
        break;
    }
    if constexpr (kWide) {
      switch (shape) {
        case 10:
          go(integral_constant<int, 2>(), integral_constant<int, 2>());
          break;
        case 14:
          go(integral_constant<int, 3>(), integral_constant<int, 2>());
          break;
        case 17:
          go(integral_constant<int, 4>(), integral_constant<int, 1>());
          break;
        case 18:
          go(integral_constant<int, 4>(), integral_constant<int, 2>());
          break;
      }
    }
    if (!s.update) continue;
    char* stored = static_cast<char*>(p.state) + ring_at(p.state_at, unit, at.head, 0) * Chunk::kBytes + own;
    consume::fold<M, Chunk>(corrections, at, s, tokens + s.transposed, s.store ? stored : nullptr);
  }
}

// The outputs of a row without a seat.
__device__ __forceinline__ void clear_outputs(const VerifyParams& p, const Unit& unit, int thread, int threads) {
#pragma unroll 1
  for (int64_t i = thread; i < int64_t{unit.heads} * unit.T * (kHead / 2); i += threads) {
    const int token = static_cast<int>(i / (kHead / 2) % unit.T), head = static_cast<int>(i / (kHead / 2) / unit.T);
    const int64_t at = token_at(unit.token + token, p.out_token, unit.head + head, p.out_head);
    consume::store_pair(p, at + 2 * (i % (kHead / 2)), 0, 0);
  }
}

}  // namespace deltaring::cuda
