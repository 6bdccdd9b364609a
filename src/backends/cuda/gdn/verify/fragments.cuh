// f32 numbers as three bf16 parts, and matrix fragments made of them.
#pragma once
#include "backends/cuda/ptx.cuh"

namespace deltaring::cuda {

__device__ __forceinline__ float high_part(float x) { return __uint_as_float(__float_as_uint(x) & 0xffff0000u); }

// The upper halves of two words: truncated bf16, `low` in the low half.
__device__ __forceinline__ uint32_t pack_upper(float low, float high) {
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

// Two f32 as bf16 pairs with x = parts[0] + parts[1] + parts[2] exactly: 24 bits of significand are three times 8.
__device__ __forceinline__ void split(float x0, float x1, uint32_t (&parts)[3]) {
  parts[0] = pack_upper(x0, x1);
  const float r0 = x0 - high_part(x0), r1 = x1 - high_part(x1);
  parts[1] = pack_upper(r0, r1);
  parts[2] = pack_upper(r0 - high_part(r0), r1 - high_part(r1));
}

__device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// A [16, 8] B fragment in three parts, as a lane keeps it in shared memory: high and middle, then low.
__device__ __forceinline__ void store_fragment(char* fragment, int lane, const uint32_t (&b0)[3],
                                               const uint32_t (&b1)[3]) {
  reinterpret_cast<uint4*>(fragment)[lane] = {b0[0], b1[0], b0[1], b1[1]};
  reinterpret_cast<uint2*>(fragment + 512)[lane] = {b0[2], b1[2]};
}

// d += a b with both in three parts, all products above 2^-24 of the largest, small ones first.
__device__ __forceinline__ void mma_parts(float (&d)[4], const uint32_t (&a)[3][4], const char* fragment, int lane) {
  const uint4 hm = reinterpret_cast<const uint4*>(fragment)[lane];
  const uint2 l = reinterpret_cast<const uint2*>(fragment + 512)[lane];
  mma_bf16(d, a[2], hm.x, hm.y);
  mma_bf16(d, a[0], l.x, l.y);
  mma_bf16(d, a[1], hm.z, hm.w);
  mma_bf16(d, a[1], hm.x, hm.y);
  mma_bf16(d, a[0], hm.z, hm.w);
  mma_bf16(d, a[0], hm.x, hm.y);
}

}  // namespace deltaring::cuda
