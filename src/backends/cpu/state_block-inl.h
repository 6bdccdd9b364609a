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
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (t == DType::bf16 && count == stride) {
    const hn::Rebind<hwy::bfloat16_t, decltype(d)> narrow;
    const auto* from = static_cast<const hwy::bfloat16_t*>(row);
    for (int64_t c = 0; c < stride; c += lanes) hn::Store(hn::PromoteTo(d, hn::LoadU(narrow, from + c)), d, out + c);
    return;
  }
#if DELTARING_CPU_F16
  if (t == DType::f16 && count == stride) {
    const hn::Rebind<hwy::float16_t, decltype(d)> narrow;
    const auto* from = static_cast<const hwy::float16_t*>(row);
    for (int64_t c = 0; c < stride; c += lanes) hn::Store(hn::PromoteTo(d, hn::LoadU(narrow, from + c)), d, out + c);
    return;
  }
#endif
  load_floats(row, t, 0, count, out);
  std::fill(out + count, out + stride, 0.0f);
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

// x as it reads back from `t`.
template <class D, class V>
HWY_INLINE V RoundTo(D d, DType t, V x) {
  return t == DType::f32 ? x : t == DType::bf16 ? RoundToBf16(d, x) : RoundToF16(d, x);
}

// Stores `count` elements that have been rounded to `t`.
HWY_INLINE void StoreRow(const float* HWY_RESTRICT row, DType t, int64_t count, int64_t stride, void* to) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (t == DType::bf16 && count == stride) {
    const hn::RebindToUnsigned<decltype(d)> du;
    const hn::Rebind<uint16_t, decltype(d)> narrow;
    auto* out = static_cast<uint16_t*>(to);
    for (int64_t c = 0; c < stride; c += lanes) {
      const auto high = hn::ShiftRight<16>(hn::BitCast(du, hn::Load(d, row + c)));
      hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(hn::RebindToSigned<decltype(d)>(), high)), narrow, out + c);
    }
    return;
  }
#if DELTARING_CPU_F16
  if (t == DType::f16 && count == stride) {
    const hn::Rebind<hwy::float16_t, decltype(d)> narrow;
    auto* out = static_cast<hwy::float16_t*>(to);
    for (int64_t c = 0; c < stride; c += lanes) hn::StoreU(hn::DemoteTo(narrow, hn::Load(d, row + c)), narrow, out + c);
    return;
  }
#endif
  store_floats(to, t, 0, count, row);
}

// Rounds and stores `count` floats.
HWY_INLINE void StoreRounded(const float* HWY_RESTRICT x, DType t, int64_t count, void* to) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kPiece = 64;  // whole vectors on every target
  HWY_ALIGN float piece[kPiece];
  int64_t c = 0;
  for (; c + kPiece <= count && t != DType::f32; c += kPiece) {
    for (int64_t i = 0; i < kPiece; i += static_cast<int64_t>(hn::Lanes(d)))
      hn::Store(RoundTo(d, t, hn::LoadU(d, x + c + i)), d, piece + i);
    StoreRow(piece, t, kPiece, kPiece, static_cast<uint16_t*>(to) + c);
  }
  store_floats(to, t, c, count - c, x + c);
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
