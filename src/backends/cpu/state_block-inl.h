// Rows of a stored state, float32 or 16 bits wide, to float rows and back. Included per SIMD target.
#if defined(DELTARING_CPU_STATE_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARING_CPU_STATE_BLOCK_INL_H_
#undef DELTARING_CPU_STATE_BLOCK_INL_H_
#else
#define DELTARING_CPU_STATE_BLOCK_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "base/view.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whether this target converts float16 in hardware, rounding to nearest even; the library's own emulation truncates.
#undef DELTARING_CPU_F16
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define DELTARING_CPU_F16 1
#else
#define DELTARING_CPU_F16 0
#endif

// x as it reads back from a bfloat16: round to nearest even, NaN stays NaN.
template <class D, class V>
HWY_INLINE V RoundToBf16(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x), high = hn::Set(du, 0xffff0000u);
  const auto even = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::And(hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), even), high);
  const auto quiet = hn::And(hn::Or(bits, hn::Set(du, 0x400000u)), high);
  return hn::IfThenElse(hn::IsNaN(x), hn::BitCast(d, quiet), hn::BitCast(d, rounded));
}

// `count` elements of a stored row into out, which has room for whole vectors; what lies behind `count` is zero.
HWY_INLINE void LoadRow(const void* row, DType t, int64_t count, int64_t stride, float* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), whole = count / lanes * lanes;
  int64_t c = 0;
  if (t == DType::f32) {
    const auto* from = static_cast<const float*>(row);
    for (; c < whole; c += lanes) hn::Store(hn::LoadU(d, from + c), d, out + c);
  } else if (t == DType::bf16) {
    const hn::Rebind<hwy::bfloat16_t, decltype(d)> narrow;
    const auto* from = static_cast<const hwy::bfloat16_t*>(row);
    for (; c < whole; c += lanes) hn::Store(hn::PromoteTo(d, hn::LoadU(narrow, from + c)), d, out + c);
  } else if (DELTARING_CPU_F16) {
    const hn::Rebind<hwy::float16_t, decltype(d)> narrow;
    const auto* from = static_cast<const hwy::float16_t*>(row);
    for (; c < whole; c += lanes) hn::Store(hn::PromoteTo(d, hn::LoadU(narrow, from + c)), d, out + c);
  }
  if (c < count) load_floats(row, t, c, count - c, out + c);
  if (count < stride) std::fill(out + count, out + stride, 0.0f);
}

// x as it reads back from a float16.
template <class D, class V>
HWY_INLINE V RoundToF16(D d, V x) {
#if DELTARING_CPU_F16
  return hn::PromoteTo(d, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), x));
#else
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(x, d, lanes);
  for (float& lane : lanes) lane = round_to(DType::f16, lane);
  return hn::Load(d, lanes);
#endif
}

// x [stride] in place, as it reads back from `t`.
HWY_INLINE void RoundRow(DType t, int64_t stride, float* x) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t c = 0; c < stride && t == DType::bf16; c += lanes)
    hn::Store(RoundToBf16(d, hn::Load(d, x + c)), d, x + c);
  for (int64_t c = 0; c < stride && t == DType::f16; c += lanes) hn::Store(RoundToF16(d, hn::Load(d, x + c)), d, x + c);
}

// Stores `count` floats; those that have been rounded to bf16 are only narrowed under `rounded`.
HWY_INLINE void StoreRow(const float* HWY_RESTRICT x, DType t, int64_t count, bool rounded, void* to) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), whole = count / lanes * lanes;
  int64_t c = 0;
  if (t == DType::bf16) {
    const hn::RebindToUnsigned<decltype(d)> du;
    const hn::Rebind<uint16_t, decltype(d)> narrow;
    auto* out = static_cast<uint16_t*>(to);
    for (; c < whole; c += lanes) {
      const auto v = hn::LoadU(d, x + c);
      const auto high = hn::ShiftRight<16>(hn::BitCast(du, rounded ? v : RoundToBf16(d, v)));
      hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(hn::RebindToSigned<decltype(d)>(), high)), narrow, out + c);
    }
  } else if (t == DType::f16 && DELTARING_CPU_F16) {
    const hn::Rebind<hwy::float16_t, decltype(d)> narrow;
    auto* out = static_cast<hwy::float16_t*>(to);
    for (; c < whole; c += lanes) hn::StoreU(hn::DemoteTo(narrow, hn::LoadU(d, x + c)), narrow, out + c);
  }
  if (c < count) store_floats(to, t, c, count - c, x + c);
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
