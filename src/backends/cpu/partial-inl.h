// Loads and stores of the last lanes of a row. Nothing outside the row is touched. Included once per SIMD target.
#if defined(DELTARING_CPU_PARTIAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARING_CPU_PARTIAL_INL_H_
#undef DELTARING_CPU_PARTIAL_INL_H_
#else
#define DELTARING_CPU_PARTIAL_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// p[0 .. min(left, lanes)), zeros behind them.
template <class D>
HWY_INLINE hn::Vec<D> LoadUpTo(D d, const float* p, int64_t left) {
  if (left >= static_cast<int64_t>(hn::Lanes(d))) return hn::LoadU(d, p);
  HWY_ALIGN float lanes[hn::MaxLanes(d)] = {};
  std::memcpy(lanes, p, left * sizeof(float));
  return hn::Load(d, lanes);
}

template <class D>
HWY_INLINE void StoreUpTo(D d, hn::Vec<D> v, float* p, int64_t left) {
  if (left >= static_cast<int64_t>(hn::Lanes(d))) return hn::StoreU(v, d, p);
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  std::memcpy(p, lanes, left * sizeof(float));
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
