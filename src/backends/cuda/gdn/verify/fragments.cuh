// Matrix fragments: of tokens, and of f32 numbers as three bf16 parts.
#pragma once
#include "backends/cuda/gdn/verify/config.h"
#include "backends/cuda/ptx.cuh"

namespace deltaring::cuda {

// Up to 8 rows of tokens in shared memory, as lanes read them: what is behind the last row stands for a copy of it.
struct Rows8 {
  const char* first;
  int count;
  __device__ __forceinline__ uint32_t at(int row, int piece) const {
    return shared_address(first) + min(row, count - 1) * kKeyPitch + piece * 16;
  }
};
// Of all rows of one kind, those from 8 b on.
__device__ __forceinline__ Rows8 rows_of(const char* first, int count, int b) {
  return {first + 8 * b * kKeyPitch, count - 8 * b};
}
// For load_matrices: two tiles as the A operand of a product over channels, one step at a time; a tile as the B
// operand, two steps at a time.
__device__ __forceinline__ uint32_t rows_place(const Rows8& low, const Rows8& high, int lane) {
  return (lane / 8 % 2 ? high : low).at(lane % 8, lane / 16);
}
__device__ __forceinline__ uint32_t columns_place(const Rows8& rows, int lane) { return rows.at(lane % 8, lane / 8); }

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

// A [8, 8] B fragment in three parts, as lanes keep it in shared memory: two words each, then one.
struct Fragment {
  uint32_t part[3];
};
// What lanes (g, 0) to (g, 3) keep of it.
__device__ __forceinline__ void store_fragment_row(char* fragment, int g, const uint32_t (&parts)[4][3]) {
  uint4* const two = reinterpret_cast<uint4*>(fragment + g * 32);
  two[0] = {parts[0][0], parts[0][1], parts[1][0], parts[1][1]};
  two[1] = {parts[2][0], parts[2][1], parts[3][0], parts[3][1]};
  *reinterpret_cast<uint4*>(fragment + 256 + g * 16) = {parts[0][2], parts[1][2], parts[2][2], parts[3][2]};
}
__device__ __forceinline__ Fragment load_fragment(const char* fragment, int lane) {
  const uint2 x = reinterpret_cast<const uint2*>(fragment)[lane];
  return {x.x, x.y, reinterpret_cast<const uint32_t*>(fragment + 256)[lane]};
}

// The accumulator [16, 8] of one product as the A operand of the next, in three parts of which two at a time fill the
// depth of an instruction.
struct Parts {
  uint32_t low_high[4], high_middle[4];
  __device__ __forceinline__ explicit Parts(const float (&x)[4]) {
    uint32_t p[3], r[3];
    split(x[0], x[1], p);
    split(x[2], x[3], r);
    low_high[0] = p[2], low_high[1] = r[2], low_high[2] = high_middle[0] = p[0], low_high[3] = high_middle[1] = r[0];
    high_middle[2] = p[1], high_middle[3] = r[1];
  }
};

// d += a b with both in three parts, all products above 2^-24 of the largest, small ones first.
__device__ __forceinline__ void mma_parts(float (&d)[4], const Parts& a, const Fragment& b) {
  mma_bf16(d, a.low_high, b.part[0], b.part[2]);
  mma_bf16(d, a.high_middle, b.part[1], b.part[1]);
  mma_bf16(d, a.high_middle, b.part[0], b.part[0]);
}

}  // namespace deltaring::cuda
