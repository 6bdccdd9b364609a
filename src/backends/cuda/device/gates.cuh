// Raw gates a, b as g and beta: one place, so that the bits of the op are those of a fused call and of its records.
#pragma once

namespace deltaring::cuda {

// -exp(A_log) softplus(a + dt_bias)
__device__ __forceinline__ float log_decay(float A_log, float dt_bias, float a) {
  const float x = __fadd_rn(a, dt_bias);
  return -__fmul_rn(expf(A_log), x > 20.0f ? x : log1pf(expf(x)));
}

// sigmoid(b): a Newton step behind the hardware's reciprocal, which has no slow path to call. Of an infinite e^-b that
// is 0.
__device__ __forceinline__ float sigmoid(float b) {
  const float d = __fadd_rn(1.0f, expf(-b));
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(d));
  return d <= 3.0e38f ? __fmul_rn(y, fmaf(-d, y, 2.0f)) : y;
}

}  // namespace deltaring::cuda
