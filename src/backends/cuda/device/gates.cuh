// Raw gates a, b as g and beta, and SiLU: one place, so that the bits of the op are those of a fused call and of its
// records.
#pragma once

namespace deltaring::cuda {

// -exp(A_log) softplus(a + dt_bias)
__device__ __forceinline__ float log_decay(float A_log, float dt_bias, float a) {
  const float x = __fadd_rn(a, dt_bias);
  return -__fmul_rn(expf(A_log), x > 20.0f ? x : log1pf(expf(x)));
}

// 1/d by the hardware, which has no slow path to call; 0 of an infinite d. `newton` makes it exact to a rounding.
__device__ __forceinline__ float near_reciprocal(float d) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(d));
  return y;
}
__device__ __forceinline__ float newton(float d, float y) { return __fmul_rn(y, fmaf(-d, y, 2.0f)); }

// sigmoid(b), 0 where e^-b is infinite.
__device__ __forceinline__ float sigmoid(float b) {
  const float d = __fadd_rn(1.0f, expf(-b)), y = near_reciprocal(d);
  return d <= 3.0e38f ? newton(d, y) : y;
}

// x sigmoid(x), of e^-|x|: 1 <= d <= 2.
__device__ __forceinline__ float silu(float x) {
  const float e = expf(-fabsf(x)), d = __fadd_rn(1.0f, e);
  return __fmul_rn(x < 0 ? __fmul_rn(x, e) : x, newton(d, near_reciprocal(d)));
}

}  // namespace deltaring::cuda
