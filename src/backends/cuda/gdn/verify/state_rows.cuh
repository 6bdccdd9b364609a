// Sixteen rows of a state, a warp's share, a chunk of 32 channels at a time in registers, as operand and as accumulator
// at once.
//
// A lane (g, t) owns rows v and v+1 (v = 2g of the stripe) at channels 32c + 8t + 0..7: 16-byte pieces. The same words
// are the A operand of two multiplications of depth 16, if the other operand's channels are taken in the same order,
// and the accumulator of four tiles of 8 channels. So a fold needs no exchange between lanes.
#pragma once
#include <cuda_fp16.h>

#include "backends/cuda/gdn/verify/fragments.cuh"
#include "backends/cuda/gdn/verify/units.h"

namespace deltaring::cuda {

constexpr int kChunks = kHead / 32;

struct Bf16Words {
  __device__ static float2 unpack(uint32_t word) { return {bf16_low(word), bf16_high(word)}; }
  __device__ static uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};
struct F16Words {
  __device__ static float2 unpack(uint32_t word) { return __half22float2(*reinterpret_cast<const __half2*>(&word)); }
  __device__ static uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

// What the 16-bit dtypes have in common: a word is two channels.
template <class Words>
struct PackedChunk {
  static constexpr int kBytes = 2;  // of an element
  uint32_t s[2][4];

  // at: the lane's first row at channel 8t, in any memory.
  __device__ void load(const char* at, int c) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const uint4 x = *reinterpret_cast<const uint4*>(at + 2 * kHead * r + 64 * c);
      s[r][0] = x.x, s[r][1] = x.y, s[r][2] = x.z, s[r][3] = x.w;
    }
  }
  __device__ void store(char* at, int c) const {
#pragma unroll
    for (int r = 0; r < 2; r++)
      *reinterpret_cast<uint4*>(at + 2 * kHead * r + 64 * c) = {s[r][0], s[r][1], s[r][2], s[r][3]};
  }
  // Channels 2i and 2i+1 of rows v (0, 1) and v+1 (2, 3).
  __device__ void get(int i, float (&x)[4]) const {
    const float2 low = Words::unpack(s[0][i]), high = Words::unpack(s[1][i]);
    x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
  }
  __device__ void set(int i, const float (&x)[4]) {
    s[0][i] = Words::pack(x[0], x[1]), s[1][i] = Words::pack(x[2], x[3]);
  }
};

// parts(h, a): the A operand of channels 4h + 0..3, exact as a sum of kParts bf16 operands.
struct Bf16Chunk : PackedChunk<Bf16Words> {
  static constexpr int kParts = 1;
  __device__ void parts(int h, uint32_t (&a)[kParts][4]) const {
    a[0][0] = s[0][2 * h], a[0][1] = s[1][2 * h], a[0][2] = s[0][2 * h + 1], a[0][3] = s[1][2 * h + 1];
  }
};

struct F16Chunk : PackedChunk<F16Words> {
  static constexpr int kParts = 2;
  __device__ void parts(int h, uint32_t (&a)[kParts][4]) const {
#pragma unroll
    for (int m = 0; m < 4; m++) {
      const float2 x = F16Words::unpack(s[m % 2][2 * h + m / 2]);
      uint32_t three[3];
      split(x.x, x.y, three);
      a[0][m] = three[0], a[1][m] = three[1];
    }
  }
};

struct F32Chunk {
  static constexpr int kParts = 3, kBytes = 4;
  float s[2][8];

  __device__ void load(const char* at, int c) {
#pragma unroll
    for (int m = 0; m < 4; m++) {
      const float4 x = *reinterpret_cast<const float4*>(at + 4 * kHead * (m / 2) + 128 * c + 16 * (m % 2));
      float* to = &s[m / 2][m % 2 * 4];
      to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
  }
  __device__ void store(char* at, int c) const {
#pragma unroll
    for (int m = 0; m < 4; m++) {
      const float* x = &s[m / 2][m % 2 * 4];
      *reinterpret_cast<float4*>(at + 4 * kHead * (m / 2) + 128 * c + 16 * (m % 2)) = {x[0], x[1], x[2], x[3]};
    }
  }
  __device__ void get(int i, float (&x)[4]) const {
#pragma unroll
    for (int m = 0; m < 4; m++) x[m] = s[m / 2][2 * i + m % 2];
  }
  __device__ void set(int i, const float (&x)[4]) {
#pragma unroll
    for (int m = 0; m < 4; m++) s[m / 2][2 * i + m % 2] = x[m];
  }
  __device__ void parts(int h, uint32_t (&a)[kParts][4]) const {
#pragma unroll
    for (int m = 0; m < 4; m++) {
      uint32_t three[3];
      split(s[m % 2][4 * h + m / 2 * 2], s[m % 2][4 * h + m / 2 * 2 + 1], three);
#pragma unroll
      for (int part = 0; part < 3; part++) a[part][m] = three[part];
    }
  }
};

}  // namespace deltaring::cuda
