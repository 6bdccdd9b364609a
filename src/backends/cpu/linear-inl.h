// The product kernel of the cpu backend. Included once per SIMD target.
//
// Order of the reduction, the same in every path (L = lanes of a vector):
//   1. k is cut into chunks of kChunk. A chunk's product x[m] . w[n] has one vector accumulator.
//   2. A chunk is walked in steps of 2L, two fused multiply-adds each. Lane l of a step takes k = 2l, then 2l+1 when w
//      is bf16 (its two halves fall out of a 32-bit word by a shift and a mask), otherwise k = l, then L+l. Past the end
//      of K both factors are zeros.
//   3. Sum4 adds the lanes; the chunks' sums are added in ascending order of k, in f32.
// Nothing here depends on M, N, the tile or the thread.
#if defined(DELTARING_CPU_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARING_CPU_LINEAR_INL_H_
#undef DELTARING_CPU_LINEAR_INL_H_
#else
#define DELTARING_CPU_LINEAR_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "backends/cpu/linear_plan.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using Vec = hn::Vec<F>;
constexpr int kLanes = hn::MaxLanes(F());
constexpr int kStep = 2 * kLanes;  // elements of k per step

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE Vec EvenBf16(const uint16_t* w) { return hn::Set(F(), bf16_to_float(w[0])); }
HWY_INLINE Vec OddBf16(const uint16_t* w) { return hn::Set(F(), bf16_to_float(w[1])); }
HWY_INLINE void LoadEvenOdd(const float* x, Vec& even, Vec& odd) { even = hn::LoadU(F(), x), odd = hn::LoadU(F(), x + 1); }
HWY_INLINE void AddSums(Vec a, Vec b, Vec c, Vec e, float* sums) {
  sums[0] += hn::GetLane(a), sums[1] += hn::GetLane(b), sums[2] += hn::GetLane(c), sums[3] += hn::GetLane(e);
}
#else
using Words = hn::Repartition<uint32_t, F>;
HWY_INLINE hn::Vec<Words> LoadPairs(const uint16_t* w) {
  return hn::BitCast(Words(), hn::LoadU(hn::Repartition<uint16_t, F>(), w));
}
HWY_INLINE Vec EvenBf16(const uint16_t* w) { return hn::BitCast(F(), hn::ShiftLeft<16>(LoadPairs(w))); }
HWY_INLINE Vec OddBf16(const uint16_t* w) {
  return hn::BitCast(F(), hn::And(LoadPairs(w), hn::Set(Words(), 0xffff0000u)));
}
HWY_INLINE void LoadEvenOdd(const float* x, Vec& even, Vec& odd) { hn::LoadInterleaved2(F(), x, even, odd); }

// Blocks of 128 bits added, upper ones onto lower ones.
template <class D>
HWY_INLINE hn::Vec<hn::Full128<float>> AddBlocks(D, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return AddBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// sums[0..3] += the lanes of a, b, c and e; inside each block (0+2) + (1+3).
HWY_INLINE void AddSums(Vec a, Vec b, Vec c, Vec e, float* sums) {
  const F d;
  const hn::Repartition<uint64_t, F> pairs;
  const auto ab = hn::BitCast(pairs, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(pairs, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  const Vec abce = hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, ab, ce)),
                           hn::BitCast(d, hn::InterleaveUpper(pairs, ab, ce)));
  const hn::Full128<float> four;
  hn::Store(hn::Add(hn::Load(four, sums), AddBlocks(d, abce)), four, sums);
}
#endif

#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
HWY_INLINE Vec Held(Vec v) { asm("" : "+x"(v.raw)); return v; }
#else
HWY_INLINE Vec Held(Vec v) { return v; }
#endif
// How one step's weights become two vectors of f32.
struct F32Weights {
  using T = float;
  static HWY_INLINE Vec first(const T* w) { return hn::LoadU(F(), w); }
  static HWY_INLINE Vec second(const T* w) { return hn::LoadU(F(), w + kLanes); }
};

struct Bf16Weights {
  using T = uint16_t;
  static HWY_INLINE Vec first(const T* w) { return EvenBf16(w); }
  static HWY_INLINE Vec second(const T* w) { return OddBf16(w); }
};

struct F16Weights {
  using T = uint16_t;
  using Half = hn::Rebind<hwy::float16_t, F>;
  static HWY_INLINE Vec half(const T* w) {
    return hn::PromoteTo(F(), hn::LoadU(Half(), reinterpret_cast<const hwy::float16_t*>(w)));
  }
  static HWY_INLINE Vec first(const T* w) { return half(w); }
  static HWY_INLINE Vec second(const T* w) { return half(w + kLanes); }
};

// One row of x in the order of the steps, zeros behind its end: [chunk][M][kChunk].
inline void PackRow(const Product& p, int64_t m) {
  const F d;
  const float* x = p.args.x.f32(m);
  for (int64_t k0 = 0; k0 < p.K; k0 += kChunk) {
    float* out = p.packed(k0, m);
    const int64_t length = std::min<int64_t>(kChunk, p.K - k0);
    for (int64_t k = 0; k < length; k += kStep) {
      alignas(64) float tail[kStep] = {};
      const float* in = x + k0 + k;
      if (k + kStep > length) in = static_cast<float*>(std::memcpy(tail, in, (length - k) * sizeof(float)));
      Vec a = hn::LoadU(d, in), b = hn::LoadU(d, in + kLanes);
      if (p.args.w.dtype == DType::bf16) LoadEvenOdd(in, a, b);
      hn::Store(a, d, out + k);
      hn::Store(b, d, out + k + kLanes);
    }
  }
}

// sums[n][m] += x[m] . w[n] over one chunk, m < MR <= 4, n < NR. Rows of x lie kChunk apart, those of sums `pitch`.
// `next` is where the same columns of the next tile lie, or 0: fetched ahead, since hardware sees only short runs.
template <class Weights, int MR, int NR, class T = typename Weights::T>
HWY_INLINE void Tile(const float* x, const T* w, int64_t w_stride, int64_t length, int64_t next, float* sums,
                     int64_t pitch) {
  const F d;
  Vec acc[NR][MR];
  for (int n = 0; n < NR; n++)
    for (int m = 0; m < MR; m++) acc[n][m] = hn::Zero(d);
  const auto step = [&](const float* x, const T* w, int64_t w_stride) HWY_ATTR {
    Vec v[NR];
    for (int n = 0; n < NR; n++) v[n] = Held(Weights::first(w + n * w_stride));
    for (int m = 0; m < MR; m++) {
      const Vec xm = Held(hn::Load(d, x + m * kChunk));
      for (int n = 0; n < NR; n++) acc[n][m] = hn::MulAdd(xm, v[n], acc[n][m]);
    }
    for (int n = 0; n < NR; n++) v[n] = Held(Weights::second(w + n * w_stride));
    for (int m = 0; m < MR; m++) {
      const Vec xm = Held(hn::Load(d, x + m * kChunk + kLanes));
      for (int n = 0; n < NR; n++) acc[n][m] = hn::MulAdd(xm, v[n], acc[n][m]);
    }
  };
  int64_t k = 0;
  for (; k + kStep <= length; k += kStep) {
    if (next)
      for (int n = 0; n < NR; n++) hwy::Prefetch(w + n * w_stride + next + k);
    step(x + k, w + k, w_stride);
  }
  if (k < length) {
    alignas(64) T tail[NR * kStep] = {};
    for (int n = 0; n < NR; n++) std::memcpy(tail + n * kStep, w + n * w_stride + k, (length - k) * sizeof(T));
    step(x + k, tail, kStep);
  }
  for (int n = 0; n < NR; n++) {
    AddSums(acc[n][0], acc[n][MR > 1 ? 1 : 0], acc[n][MR > 2 ? 2 : 0], acc[n][MR > 3 ? 3 : 0], sums + n * pitch);
  }
}

// The same for any number of rows and columns of one chunk.
template <class Weights, int NR, class T = typename Weights::T>
HWY_INLINE void Columns(const float* x, int64_t rows, const T* w, int64_t w_stride, int64_t length, int64_t next,
                        float* sums, int64_t pitch) {
  for (int64_t m = 0; m < rows; m += 4) {
    const float* xm = x + m * kChunk;
    if (m) next = 0;
    switch (std::min<int64_t>(4, rows - m)) {
      case 1: Tile<Weights, 1, NR>(xm, w, w_stride, length, next, sums + m, pitch); break;
      case 2: Tile<Weights, 2, NR>(xm, w, w_stride, length, next, sums + m, pitch); break;
      case 3: Tile<Weights, 3, NR>(xm, w, w_stride, length, next, sums + m, pitch); break;
      default: Tile<Weights, 4, NR>(xm, w, w_stride, length, next, sums + m, pitch);
    }
  }
}

constexpr int kNR = 3;

template <class Weights>
HWY_NOINLINE void FewRows(const Product& p, int64_t m0, int64_t rows, int64_t n0, int64_t cols, float* sums,
                          int64_t pitch) {
  using T = typename Weights::T;
  const int64_t stride = p.args.w.stride[0];
  const int64_t panel = std::max<int64_t>(1, 8 / rows) * kChunk;
  for (int64_t p0 = 0; p0 < p.K; p0 += panel) {
    const int64_t p1 = std::min(p.K, p0 + panel);
    int64_t n = 0;
    for (; n + kNR <= cols; n += kNR) {
      for (int64_t k0 = p0; k0 < p1; k0 += kChunk) {
        const T* w = static_cast<const T*>(p.args.w.data) + (n0 + n) * stride + k0;
        Columns<Weights, kNR>(p.packed(k0, m0), rows, w, stride, std::min<int64_t>(kChunk, p.K - k0),
                                 kNR * stride, sums + n * pitch, pitch);
      }
    }
    for (; n < cols; n++) {
      for (int64_t k0 = p0; k0 < p1; k0 += kChunk) {
        const T* w = static_cast<const T*>(p.args.w.data) + (n0 + n) * stride + k0;
        Columns<Weights, 1>(p.packed(k0, m0), rows, w, stride, std::min<int64_t>(kChunk, p.K - k0), stride,
                               sums + n * pitch, pitch);
      }
    }
  }
}

template <class Weights>
HWY_NOINLINE void ManyRows(const Product& p, int64_t m0, int64_t rows, int64_t n0, int64_t cols, float* sums,
                           int64_t pitch) {
  using T = typename Weights::T;
  const F d;
  const int64_t stride = p.args.w.stride[0];
  alignas(64) float panel[kCols * kChunk];
  for (int64_t k0 = 0; k0 < p.K; k0 += kChunk) {
    const int64_t length = std::min<int64_t>(kChunk, p.K - k0);
    for (int64_t n = 0; n < cols; n++) {
      const T* w = static_cast<const T*>(p.args.w.data) + (n0 + n) * stride + k0;
      const auto step=[&](const T*in,int64_t k) HWY_ATTR {
        hn::Store(Weights::first(in), d, panel + n * kChunk + k);
        hn::Store(Weights::second(in), d, panel + n * kChunk + k + kLanes);
      };
      int64_t k = 0;
      for (; k+kStep <= length; k += kStep) step(w+k,k);
      if (k < length) {
        alignas(64) T tail[kStep] = {};
        std::memcpy(tail, w+k, (length - k) * sizeof(T));
        step(tail,k);
      }
    }
    const int64_t padded = (length + kStep - 1) / kStep * kStep;
    for (int64_t m = 0; m < rows; m += 4) {
      int64_t n = 0;
      const int64_t mr = std::min<int64_t>(4, rows - m);
      for (; n + kNR <= cols; n += kNR) {
        Columns<F32Weights, kNR>(p.packed(k0, m0 + m), mr, panel + n * kChunk, kChunk, padded, 0, sums + n * pitch + m,
                                 pitch);
      }
      for (; n < cols; n++) {
        Columns<F32Weights, 1>(p.packed(k0, m0 + m), mr, panel + n * kChunk, kChunk, padded, 0, sums + n * pitch + m,
                               pitch);
      }
    }
  }
}

#ifndef FEW
#define FEW 8
#endif
template <class Weights>
void Block(const Product& p, int64_t m0, int64_t n0) {
  const int64_t rows = std::min(kRows, p.M - m0), cols = std::min(kCols, p.N - n0);
  const int64_t pitch = (rows + 3) / 4 * 4;
  alignas(64) float sums[kCols * kRows];
  std::fill_n(sums, cols * pitch, 0.0f);
  if (rows <= FEW) FewRows<Weights>(p, m0, rows, n0, cols, sums, pitch);
  else ManyRows<Weights>(p, m0, rows, n0, cols, sums, pitch);
  for (int64_t m = 0; m < rows; m++) {
    float* out = p.args.out.f32(m0 + m, n0);
    for (int64_t n = 0; n < cols; n++) out[n] = p.args.accumulate ? out[n] + sums[n * pitch + m] : sums[n * pitch + m];
  }
}

inline void MultiplyBlock(const Product& p, int64_t m0, int64_t n0) {
  switch (p.args.w.dtype) {
    case DType::f32: return Block<F32Weights>(p, m0, n0);
    case DType::bf16: return Block<Bf16Weights>(p, m0, n0);
    case DType::f16: return Block<F16Weights>(p, m0, n0);
  }
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
