// What a warp has of a head in shared memory: v of its rows, in pieces (below), and its tile of the state: 8 KB of
// whole rows of V in shared memory, in 16-byte pieces that are swizzled so that no access below meets a bank twice.
//
// A quad is what a lane (g, t) has of 16 rows and 16 channels: rows 2g and 2g+1 at channels {2t, 2t+1}, then at {2t+8,
// 2t+9}. That is the A operand of a product over channels, and the accumulators of two tiles of 8 channels: a fold
// needs no exchange between lanes.
#pragma once
#include "backends/cuda/device/element.cuh"
#include "backends/cuda/gdn/verify/fragments.cuh"
#include "backends/cuda/gdn/verify/units.h"

namespace deltaring::cuda {

constexpr int kSteps = kHead / 16;  // of 16 channels

// What the 16-bit dtypes have in common. pair(m): channels {2t, 2t+1} of rows 2g (m = 0) and 2g+1 (1), then {2t+8,
// 2t+9} of both.
template <DType t>
struct PackedQuad {
  static constexpr int kBytes = 2;  // of an element
  uint32_t w[4];

  // The lane's place in a tile's first 16 rows at step 0.
  __device__ static uint32_t place(uint32_t tile, int lane) {
    const int i = lane % 8;
    return tile + (2 * i + lane / 8 % 2) * kHead * kBytes + ((lane / 16 ^ i) << 4);
  }
  __device__ void load(uint32_t place, int step) { load_matrices(w, place ^ step << 5); }
  __device__ void store(uint32_t place, int step) const { store_matrices(place ^ step << 5, w); }
  __device__ float2 pair(int m) const { return unpack_two<t>(w[m]); }
  __device__ void set(int m, float low, float high) { w[m] = pack_two<t>(low, high); }
};

// Operand: what a quad is to products with tokens, whose 16 channels of a column are two words; product i of
// kProducts, small ones first.
struct Bf16Quad : PackedQuad<DType::bf16> {
  struct Operand {
    static constexpr int kProducts = 1;
    uint32_t w[4];
    __device__ __forceinline__ explicit Operand(const Bf16Quad& from) {
#pragma unroll
      for (int m = 0; m < 4; m++) w[m] = from.w[m];
    }
    __device__ __forceinline__ void multiply(int, float (&d)[4], uint32_t low, uint32_t high) const {
      mma_bf16(d, w, low, high);
    }
  };
};

// In tf32, eight channels at a time: as they are in fragments.cuh, neighbours in one lane. kParts of a number.
template <int kParts>
struct Tf32Operand {
  static constexpr int kProducts = 2 * kParts;
  uint32_t part[kParts][2][4];
  template <class Quad>
  __device__ __forceinline__ explicit Tf32Operand(const Quad& from) {
#pragma unroll
    for (int m = 0; m < 4; m++) {
      const float2 pair = from.pair(m);
      const float x[2] = {pair.x, pair.y};
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float high = kParts == 1 ? x[e] : high_tf32(x[e]);
        part[0][m / 2][2 * e + m % 2] = __float_as_uint(high);
        if constexpr (kParts == 2) part[1][m / 2][2 * e + m % 2] = __float_as_uint(x[e] - high);
      }
    }
  }
  __device__ __forceinline__ void multiply(int i, float (&d)[4], uint32_t low, uint32_t high) const {
    const uint32_t word = i % 2 ? high : low;
    mma_tf32(d, part[kParts - 1 - i / 2][i % 2], word << 16, word & 0xffff0000u);
  }
};

struct F16Quad : PackedQuad<DType::f16> {
  using Operand = Tf32Operand<1>;
};

struct F32Quad {
  using Operand = Tf32Operand<2>;
  static constexpr int kBytes = 4;
  float2 x[4];

  __device__ static uint32_t place(uint32_t tile, int lane) {
    const int g = lane / 4, t = lane % 4;
    return tile + 2 * g * kHead * kBytes + ((t / 2 ^ 2 * (g % 4)) << 4) + t % 2 * 8;
  }
  __device__ static uint32_t at(uint32_t place, int step, int m) {
    return (place ^ (step << 6 | m / 2 << 5)) + m % 2 * kHead * kBytes;
  }
  __device__ void load(uint32_t place, int step) {
#pragma unroll
    for (int m = 0; m < 4; m++) x[m] = load_pair(at(place, step, m));
  }
  __device__ void store(uint32_t place, int step) const {
#pragma unroll
    for (int m = 0; m < 4; m++) store_pair(at(place, step, m), x[m]);
  }
  __device__ float2 pair(int m) const { return x[m]; }
  __device__ void set(int m, float low, float high) { x[m] = {low, high}; }
};

// Where byte `at` of a tile lies in it: a row of 2 x 128 elements at a time moves its pieces.
template <class Quad>
constexpr uint32_t swizzle(uint32_t at) {
  return Quad::kBytes == 2 ? at ^ (at >> 9 & 7) << 4 : at ^ (at >> 10 & 3) << 5;
}

// The tile [kTileBytes] from dense global memory, by a warp; it is there when its group of copies is.
template <class Quad>
__device__ __forceinline__ void fetch_tile(uint32_t tile, const char* from, int lane) {
  from += lane * 16, tile += lane * 16;
#pragma unroll
  for (uint32_t at = 0; at < kTileBytes; at += 512) copy_async((tile ^ swizzle<Quad>(at) ^ at) + at, from + at);
}

template <class Quad>
__device__ __forceinline__ void store_tile(uint32_t tile, char* to, int lane) {
  to += lane * 16, tile += lane * 16;
#pragma unroll
  for (uint32_t first = 0; first < kTileBytes; first += 4096) {
    uint4 pieces[8];  // all on their way before the first is waited for
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
      const uint32_t at = first + 512 * i;
      pieces[i] = load_piece((tile ^ swizzle<Quad>(at) ^ at) + at);
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) *reinterpret_cast<uint4*>(to + first + 512 * i) = pieces[i];
  }
}

// Rows of V of a tile, tiles that a warp has of a head, one after the other, and stripes of sixteen rows of a tile.
template <class Quad>
constexpr int kTileRows = kTileBytes / (kHead * Quad::kBytes);
template <class Quad>
constexpr int kTiles = kHead / kWarps / kTileRows<Quad>;
template <class Quad>
constexpr int kStripes = kTileRows<Quad> / 16;

// v of a tile's rows in shared memory: a row a key, in pieces of 16 bytes that change places from one pair of keys to
// the next.
template <class Quad>
struct ValueRows {
  static constexpr int kPitch = 2 * kTileRows<Quad>, kPieces = kPitch / 16;
  // Bytes from the first row.
  __device__ static uint32_t at(unsigned key, unsigned piece) {
    return key * kPitch + ((piece ^ key / 2 % kPieces) << 4);
  }
  // What lane (g, t) has of key 2t: rows 2g and 2g+1 of the first stripe; whole tiles of keys further on are the same.
  __device__ static uint32_t place(uint32_t rows, int lane) {
    const int g = lane / 4, t = lane % 4;
    return rows + at(2 * t, g / 4) + g % 4 * 4;
  }
  __device__ static uint32_t stripe(uint32_t place, int m) { return place ^ m << 5; }
};

// Of keys [first, first + keys) of the unit's value head `head`, a warp's rows from V on; they are there when their
// group of copies is.
template <class Quad>
__device__ __forceinline__ void fetch_values(const VerifyParams& p, const Values& from, int head, int first, int keys,
                                             int V, uint32_t rows, int lane) {
  using Rows = ValueRows<Quad>;
  constexpr int kStep = 32 / Rows::kPieces;  // keys at a time
  static_assert(kStep / 2 % Rows::kPieces == 0, "pieces of the next keys have the same places");
  const int piece = lane % Rows::kPieces, at = V + piece * 8;
  int key = lane / Rows::kPieces;
  rows += Rows::at(key, piece);
  const uint16_t* const ring = from.ring + wide_product(head, p.v_at.head) + at;
#pragma unroll 1
  for (; key < min(keys, from.records - first); key += kStep, rows += kStep * Rows::kPitch)
    copy_async(rows, ring + wide_product((from.slot + first + key) & (p.R - 1), p.v_at.row));
  const uint16_t* const tokens = from.tokens + wide_product(head, p.v_head) + at;
#pragma unroll 1
  for (; key < keys; key += kStep, rows += kStep * Rows::kPitch)
    copy_async(rows, tokens + wide_product(first + key, p.v_token));
}

}  // namespace deltaring::cuda
