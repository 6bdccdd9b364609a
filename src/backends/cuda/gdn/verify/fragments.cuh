// Matrix fragments: of tokens, and of f32 numbers in parts that tensor cores take.
#pragma once
#include "backends/cuda/gdn/verify/config.h"
#include "backends/cuda/ptx.cuh"

namespace deltaring::cuda {

// Rows of tokens in shared memory, as lanes read them: what is behind the last row stands for a copy of it.
struct Rows8 {
  uint32_t first;
  int count;
  __device__ __forceinline__ uint32_t at(int row, int piece) const {
    return first + min(row, count - 1) * kKeyPitch + piece * 16;
  }
  // Those from 8 b on.
  __device__ __forceinline__ Rows8 tile(int b) const { return {first + 8 * b * kKeyPitch, count - 8 * b}; }
};
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

// The operand of a product with tf32 numbers takes its k in the order 0, 2, 4, 6, 1, 3, 5, 7 from memory: then a pair
// of neighbours is what a lane has. Both operands do.

// A number as two of tf32: what is left of it is below 2^-21.
__device__ __forceinline__ float high_tf32(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }
__device__ __forceinline__ float nearest_tf32(float x) {
  return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
}

// The B operand: a lane's pair of a tile [8, 8] of f32.
struct Factor {
  uint32_t high[2], low[2];
  Factor() = default;
  // Rounded, so that what is left has no sign that sums would show.
  __device__ __forceinline__ explicit Factor(float2 x) {
    const float near[2] = {nearest_tf32(x.x), nearest_tf32(x.y)};
    high[0] = __float_as_uint(near[0]), high[1] = __float_as_uint(near[1]);
    low[0] = __float_as_uint(x.x - near[0]), low[1] = __float_as_uint(x.y - near[1]);
  }
};

// The accumulator [16, 8] of one product as the A operand of the next. Cut, for a large number would round to infinity.
struct Tf32Parts {
  uint32_t high[4], low[4];
  Tf32Parts() = default;
  __device__ __forceinline__ explicit Tf32Parts(const float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float part = high_tf32(x[i]);
      const int at = i % 2 * 2 + i / 2;
      high[at] = __float_as_uint(part), low[at] = __float_as_uint(x[i] - part);
    }
  }
};

// The same accumulator for a product with bf16 numbers, which as they are fill the depth of an instruction with two of
// three exact parts.
struct Bf16Parts {
  uint32_t low_high[4], high_middle[4];
  Bf16Parts() = default;
  __device__ __forceinline__ explicit Bf16Parts(const float (&x)[4]) {
    uint32_t p[3], r[3];
    split(x[0], x[1], p);
    split(x[2], x[3], r);
    low_high[0] = p[2], low_high[1] = r[2], low_high[2] = high_middle[0] = p[0], low_high[3] = high_middle[1] = r[0];
    high_middle[2] = p[1], high_middle[3] = r[1];
  }
};

}  // namespace deltaring::cuda
