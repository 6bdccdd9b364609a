// The few instructions that CUDA C++ has no name for. sm_80 and up.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>

namespace deltaring::cuda {

// d [16, 8] += a [16, 16] b [16, 8] in f32. With g = lane / 4 and t = lane % 4: a = rows {g, g+8} at k {2t, 2t+1}, then
// at k {2t+8, 2t+9}; b = column g at the same k; d = row g at columns {2t, 2t+1}, then row g+8.
__device__ inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d [16, 8] += a [16, 8] b [8, 8] in f32 of tf32, which is what the upper 19 bits of an f32 say. a = rows {g, g+8} at k
// = t, then at t+4; b = column g at the same k; d as above.
__device__ inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Four matrices of 8 x 8 words of 16 bits from rows of 16 bytes in shared memory: lane 8i + r gives the address of row
// r of matrix i, and gets of each matrix row g at columns {2t, 2t+1}; transposed, column g at rows {2t, 2t+1}.
__device__ inline void load_matrices(uint32_t (&x)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row)
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&x)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row)
               : "memory");
}

__device__ inline void store_word(uint32_t at, uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

// The way back of load_matrices.
__device__ inline void store_matrices(uint32_t row, const uint32_t (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3])
               : "memory");
#else
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < 4; i++) store_word(__shfl_sync(~0u, row, 8 * i + lane / 4) + lane % 4 * 4, x[i]);
#endif
}

__device__ inline uint32_t load_word(uint32_t at) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}
__device__ inline float2 load_pair(uint32_t at) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
  return x;
}
__device__ inline float4 load_four(uint32_t at) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
__device__ inline void store_pair(uint32_t at, float2 x) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(at), "f"(x.x), "f"(x.y) : "memory");
}
__device__ inline uint4 load_piece(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}

// A struct of 16-byte words at once: what it holds then stays in registers, whatever is written to memory.
template <class T>
__device__ __forceinline__ T load_whole(const T& from) {
  static_assert(alignof(T) == 16);
  uint4 words[sizeof(T) / 16];
#pragma unroll
  for (unsigned i = 0; i < sizeof(T) / 16; i++) words[i] = reinterpret_cast<const uint4*>(&from)[i];
  T x;
  memcpy(&x, words, sizeof x);
  return x;
}

// 16 bytes from global to shared, in groups that are waited for in order.
__device__ inline void copy_async(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Programmatic dependent launch: the next kernel may start; wait for what the previous one wrote.

__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace deltaring::cuda
