// Elements of any dtype on the device. The dtype is the same for a whole launch, so its branches never diverge.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "base/view.h"

namespace deltaring::cuda {

// Address of an element of a strided view; leading indices may be given alone.
template <int N, class... I>
__device__ __forceinline__ void* address_in(const View<N>& view, I... index) {
  int64_t sum = 0;
  int d = 0;
  ((sum += static_cast<int64_t>(index) * view.stride[d++]), ...);
  return static_cast<char*>(view.data) + sum * static_cast<int64_t>(size_of(view.dtype));
}
template <int N, class... I>
__device__ __forceinline__ float* float_in(const View<N>& view, I... index) {
  return static_cast<float*>(address_in(view, index...));
}

// The bits of an element; of two bytes the low half. Loads that are asked for in one go are waited for at their use.
__device__ __forceinline__ uint32_t load_bits(const void* p, DType t, int64_t i) {
  return t == DType::f32 ? static_cast<const uint32_t*>(p)[i] : static_cast<const uint16_t*>(p)[i];
}
__device__ __forceinline__ float value_of(DType t, uint32_t bits) {
  if (t == DType::f32) return __uint_as_float(bits);
  if (t == DType::bf16) return __uint_as_float(bits << 16);
  return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}
__device__ __forceinline__ float load(const void* p, DType t, int64_t i) { return value_of(t, load_bits(p, t, i)); }

__device__ __forceinline__ void store(void* p, DType t, int64_t i, float x) {
  if (t == DType::f32) {
    static_cast<float*>(p)[i] = x;
  } else if (t == DType::bf16) {
    static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(x);
  } else {
    static_cast<__half*>(p)[i] = __float2half_rn(x);
  }
}

// x as it would come back after being stored as t.
__device__ __forceinline__ float rounded(DType t, float x) {
  if (t == DType::f32) return x;
  if (t == DType::bf16) return __bfloat162float(__float2bfloat16_rn(x));
  return __half2float(__float2half_rn(x));
}

// f(a constant that converts to t): a branch a launch takes once, not one an element.
template <class F>
__device__ __forceinline__ void with_dtype(DType t, const F& f) {
  if (t == DType::f32) {
    f(std::integral_constant<DType, DType::f32>());
  } else if (t == DType::bf16) {
    f(std::integral_constant<DType, DType::bf16>());
  } else {
    f(std::integral_constant<DType, DType::f16>());
  }
}

// Of bf16 or f16, the first in the low half.
template <DType t>
__device__ __forceinline__ uint32_t pack_two(float low, float high) {
  if constexpr (t == DType::bf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}
template <DType t>
__device__ __forceinline__ float2 unpack_two(uint32_t pair) {
  if constexpr (t == DType::bf16) return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}

// The 16 bytes that 4 or 8 neighbours become, and the way back.
template <DType t>
__device__ __forceinline__ uint4 piece_of(const float* x) {
  if constexpr (t == DType::f32)
    return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
  else
    return make_uint4(pack_two<t>(x[0], x[1]), pack_two<t>(x[2], x[3]), pack_two<t>(x[4], x[5]),
                      pack_two<t>(x[6], x[7]));
}
template <DType t>
__device__ __forceinline__ void spread(const uint4& piece, float* x) {
  const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if constexpr (t == DType::f32) {
      x[j] = __uint_as_float(words[j]);
    } else {
      const float2 two = unpack_two<t>(words[j]);
      x[2 * j] = two.x, x[2 * j + 1] = two.y;
    }
  }
}

// Eight neighbours as they lie in memory.
template <DType t>
struct Eight {
  static constexpr int kPieces = static_cast<int>(size_of(t)) / 2, kEach = 8 / kPieces;
  uint4 pieces[kPieces];

  __device__ __forceinline__ static Eight at(const void* p) {
    Eight x;
#pragma unroll
    for (int i = 0; i < kPieces; i++) x.pieces[i] = static_cast<const uint4*>(p)[i];
    return x;
  }
  __device__ __forceinline__ static Eight of(const float* values) {
    Eight x;
#pragma unroll
    for (int i = 0; i < kPieces; i++) x.pieces[i] = piece_of<t>(values + i * kEach);
    return x;
  }
  __device__ __forceinline__ void store(void* p) const {
#pragma unroll
    for (int i = 0; i < kPieces; i++) static_cast<uint4*>(p)[i] = pieces[i];
  }
  __device__ __forceinline__ void values(float* to) const {
#pragma unroll
    for (int i = 0; i < kPieces; i++) spread<t>(pieces[i], to + i * kEach);
  }
};

}  // namespace deltaring::cuda
