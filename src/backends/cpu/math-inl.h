// Vector functions shared by the cpu kernels. Included once per SIMD target.
#if defined(DELTARING_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARING_CPU_MATH_INL_H_
#undef DELTARING_CPU_MATH_INL_H_
#else
#define DELTARING_CPU_MATH_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 1 / (1 + e^-x). The exponent is capped where the result has long become 0, since Exp ends at 104; Exp of NaN is no
// NaN.
template <class D, class V>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V y = hn::Div(one, hn::Add(one, hn::Exp(d, hn::Min(hn::Neg(x), hn::Set(d, 88.0f)))));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// x sigmoid(x); NaN stays NaN.
template <class D, class V>
HWY_INLINE V Silu(D d, V x) {
  return hn::Mul(x, Sigmoid(d, x));
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
