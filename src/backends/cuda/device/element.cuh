// Elements of any dtype on the device. The dtype is the same for a whole launch, so its branches never diverge.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

__device__ __forceinline__ float load(const void* p, DType t, int64_t i) {
  if (t == DType::f32) return static_cast<const float*>(p)[i];
  if (t == DType::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  return __half2float(static_cast<const __half*>(p)[i]);
}

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

// Eight neighbours in 16-byte pieces, of which element i begins one.
__device__ __forceinline__ void load8(const void* p, DType t, int64_t i, float* x) {
  if (t == DType::f32) {
    const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(p) + i);
    const float4 a = from[0], b = from[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    return;
  }
  const uint4 bits = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p) + i);
  const uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if (t == DType::bf16) {
      x[2 * j] = __uint_as_float(pairs[j] << 16), x[2 * j + 1] = __uint_as_float(pairs[j] & 0xffff0000u);
    } else {
      x[2 * j] = __half2float(__ushort_as_half(static_cast<uint16_t>(pairs[j])));
      x[2 * j + 1] = __half2float(__ushort_as_half(static_cast<uint16_t>(pairs[j] >> 16)));
    }
  }
}

__device__ __forceinline__ void store8(void* p, DType t, int64_t i, const float* x) {
  if (t == DType::f32) {
    float4* to = reinterpret_cast<float4*>(static_cast<float*>(p) + i);
    to[0] = make_float4(x[0], x[1], x[2], x[3]), to[1] = make_float4(x[4], x[5], x[6], x[7]);
    return;
  }
  uint32_t pairs[4];
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const float low = x[2 * j], high = x[2 * j + 1];
    const uint16_t a =
        t == DType::bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(low)) : __half_as_ushort(__float2half_rn(low));
    const uint16_t b =
        t == DType::bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(high)) : __half_as_ushort(__float2half_rn(high));
    pairs[j] = a | uint32_t{b} << 16;
  }
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p) + i) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

}  // namespace deltaring::cuda
