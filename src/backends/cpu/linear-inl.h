// The product kernel of the cpu backend. Included once per SIMD target.
//
// Order of the reduction, the same in every path (L = lanes of a vector):
//   1. k is cut into chunks of kChunk. A chunk's product x[m] . w[n] has one vector accumulator.
//   2. A chunk is walked in steps of 2L, two fused multiply-adds each. Lane l of a step takes k = 2l, then 2l+1 when w
//      is bf16 (a 32-bit word holds the two: a shift and a mask part them), otherwise k = l, then L+l. Behind the end
//      of K both factors are zeros.
//      A float8 weight is its code times the scale of its block, rounded to f32: its product has the bits of that of
//      f32.
//   3. AddSums adds the lanes; the sums of the chunks are added in ascending order of k, in f32.
// Nothing here depends on M, N, the tile or the thread.
#if defined(DELTARING_CPU_LINEAR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARING_CPU_LINEAR_INL_H_
#undef DELTARING_CPU_LINEAR_INL_H_
#else
#define DELTARING_CPU_LINEAR_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "backends/cpu/linear_plan.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using Vec = hn::Vec<F>;
constexpr int64_t kLanes = hn::MaxLanes(F());
constexpr int64_t kStep = 2 * kLanes;  // elements of k per step

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE Vec EvenBf16(const uint16_t* w) { return hn::Set(F(), bf16_to_float(w[0])); }
HWY_INLINE Vec OddBf16(const uint16_t* w) { return hn::Set(F(), bf16_to_float(w[1])); }
HWY_INLINE void LoadEvenOdd(const float* x, Vec& even, Vec& odd) {
  even = hn::LoadU(F(), x);
  odd = hn::LoadU(F(), x + 1);
}
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

// The upper half added onto the lower one until a block of 128 bits is left.
template <class D>
HWY_INLINE hn::Vec<hn::Full128<float> > AddBlocks(D, hn::Vec<D> v) {
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
  const Vec abce =
      hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(pairs, ab, ce)));
  const hn::Full128<float> four;
  hn::StoreU(hn::Add(hn::LoadU(four, sums), AddBlocks(d, abce)), four, sums);
}
#endif

// Keeps a loaded vector in a register: GCC would fold the load into each multiply-add that uses it, and loads are what
// this kernel runs out of first.
HWY_INLINE Vec Held(Vec v) {
#if HWY_COMPILER_GCC_ACTUAL && HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  asm("" : "+v"(v.raw));
#endif
  return v;
}

// How the weights of one step become two vectors of f32.
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
  using T = hwy::float16_t;
  static HWY_INLINE Vec first(const T* w) { return hn::PromoteTo(F(), hn::LoadU(hn::Rebind<T, F>(), w)); }
  static HWY_INLINE Vec second(const T* w) { return first(w + kLanes); }
};

// Codes through the bits of an f16 that is 2^-8 of their value: NaN, all ones, gets the exponent of NaN by a carry.
struct F8Weights {
  using T = uint8_t;
  static constexpr float kUnit = 0x1p8f;  // of what Load gives
#if HWY_TARGET == HWY_SCALAR
  static HWY_INLINE void Load(const T* w, Vec& first, Vec& second) {
    first = hn::Set(F(), f8_e4m3_to_float(w[0]) / kUnit);
    second = hn::Set(F(), f8_e4m3_to_float(w[1]) / kUnit);
  }
#else
  static HWY_INLINE void Load(const T* w, Vec& first, Vec& second) {
    const hn::Repartition<uint16_t, F> d;
    const hn::Half<decltype(d)> half;
    const hn::Rebind<hwy::float16_t, F> floats;
    const auto code = hn::PromoteTo(d, hn::LoadU(hn::Rebind<uint8_t, decltype(d)>(), w));
    const auto magnitude = hn::And(code, hn::Set(d, 0x7f));
    const auto carry = hn::And(hn::Add(magnitude, hn::Set(d, 1)), hn::Set(d, 0x80));
    const auto sign = hn::ShiftLeft<8>(hn::Xor(code, magnitude));
    const auto bits = hn::Or(sign, hn::ShiftLeft<7>(hn::Or(magnitude, carry)));
    first = hn::PromoteTo(F(), hn::BitCast(floats, hn::LowerHalf(half, bits)));
    second = hn::PromoteTo(F(), hn::BitCast(floats, hn::UpperHalf(half, bits)));
  }
#endif
};

// step(in, k) for every step of a chunk, k its offset. The last one reads a copy with zeros behind `length`.
template <class T, class Step>
HWY_INLINE void ForSteps(const T* in, int64_t length, const Step& step) {
  int64_t k = 0;
  for (; k + kStep <= length; k += kStep) step(in + k, k);
  if (k == length) return;
  HWY_ALIGN T tail[kStep] = {};
  std::memcpy(tail, in + k, (length - k) * sizeof(T));
  step(tail, k);
}

// Rows [m0, m0 + p.rows) of x in the order of the steps.
inline void PackRows(const Product& p, int64_t m0) {
  const F d;
  const bool pairs = p.args.w.values.dtype == DType::bf16;
  for (int64_t m = m0; m < std::min(p.M, m0 + p.rows); m++) {
    for (int64_t k0 = 0; k0 < p.K; k0 += kChunk) {
      float* out = p.packed(k0, m);
      ForSteps(p.args.x.f32(m, k0), std::min(kChunk, p.K - k0), [&](const float* in, int64_t k) HWY_ATTR {
        Vec first = hn::LoadU(d, in), second = hn::LoadU(d, in + kLanes);
        if (pairs) LoadEvenOdd(in, first, second);
        hn::Store(first, d, out + k);
        hn::Store(second, d, out + k + kLanes);
      });
    }
  }
}

// A tile has up to kTileRows rows and, where they are few, more columns: 8 to 12 accumulators hide the latency of a
// multiply-add and leave registers for the factors. All counts of columns divide kGroup.
constexpr int64_t kTileRows = 5;
constexpr bool kManyRegisters = HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64;  // 32 instead of 16
template <int MR>
constexpr int kTileCols = kManyRegisters || MR <= 2 ? 4
                          : MR == 3                 ? 3
                                                    : 2;

// Weights that are brought into the cache beside a tile: those `ahead` of its own at k in [begin, end).
struct Fetch {
  int64_t ahead, begin, end;
};

// sums[n, m] += x[m] . w[n] over one chunk, m < MR, n < NR. Rows of x lie kChunk apart, those of sums `pitch`; up to
// three sums behind those of the tile get a zero added.
template <class Weights, int MR, int NR, class T = typename Weights::T>
HWY_INLINE void Tile(const float* x, const T* w, int64_t stride, int64_t length, Fetch fetch, float* sums,
                     int64_t pitch) {
  const F d;
  Vec acc[NR][MR];
  for (int n = 0; n < NR; n++)
    for (int m = 0; m < MR; m++) acc[n][m] = hn::Zero(d);
  const auto step = [&](const float* x, const T* w, int64_t stride) HWY_ATTR {
    Vec v[NR];
    for (int n = 0; n < NR; n++) v[n] = Held(Weights::first(w + n * stride));
    for (int m = 0; m < MR; m++) {
      const Vec xm = Held(hn::Load(d, x + m * kChunk));
      for (int n = 0; n < NR; n++) acc[n][m] = hn::MulAdd(xm, v[n], acc[n][m]);
    }
    for (int n = 0; n < NR; n++) v[n] = Held(Weights::second(w + n * stride));
    for (int m = 0; m < MR; m++) {
      const Vec xm = Held(hn::Load(d, x + m * kChunk + kLanes));
      for (int n = 0; n < NR; n++) acc[n][m] = hn::MulAdd(xm, v[n], acc[n][m]);
    }
  };
  int64_t k = 0;
  for (; k + kStep <= length; k += kStep) {
    if (fetch.begin <= k && k < fetch.end)
      for (int n = 0; n < NR; n++) hwy::Prefetch(w + n * stride + k + fetch.ahead);
    step(x + k, w + k, stride);
  }
  if (k < length) {
    HWY_ALIGN T tail[NR * kStep] = {};
    for (int n = 0; n < NR; n++) std::memcpy(tail + n * kStep, w + n * stride + k, (length - k) * sizeof(T));
    step(x + k, tail, kStep);
  }
  for (int n = 0; n < NR; n++) {
    for (int m = 0; m < MR; m += 4) {
      const auto at = [&](int i) HWY_ATTR { return m + i < MR ? acc[n][std::min(m + i, MR - 1)] : hn::Zero(d); };
      AddSums(at(0), at(1), at(2), at(3), sums + n * pitch + m);
    }
  }
}

// MR rows of x times any number of columns, over one chunk.
template <class Weights, int MR, class T = typename Weights::T>
HWY_INLINE void TileRow(const float* x, const T* w, int64_t stride, int64_t cols, int64_t length, Fetch fetch,
                        float* sums, int64_t pitch) {
  constexpr int NR = kTileCols<MR>;
  int64_t n = 0;
  for (; n + NR <= cols; n += NR)
    Tile<Weights, MR, NR>(x, w + n * stride, stride, length, fetch, sums + n * pitch, pitch);
  for (; n < cols; n++) Tile<Weights, MR, 1>(x, w + n * stride, stride, length, fetch, sums + n * pitch, pitch);
}

// Any number of rows and columns, over one chunk. The rows are spread evenly over tiles.
template <class Weights, class T = typename Weights::T>
void Chunk(const float* x, int64_t rows, const T* w, int64_t stride, int64_t cols, int64_t length, int64_t ahead,
           float* sums, int64_t pitch) {
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  for (int64_t t = 0; t < tiles; t++) {
    const int64_t m = rows * t / tiles, mr = rows * (t + 1) / tiles - m;
    const float* xm = x + m * kChunk;
    const Fetch fetch{.ahead = ahead, .begin = length * t / tiles, .end = ahead ? length * (t + 1) / tiles : 0};
    switch (mr) {
      case 1:
        TileRow<Weights, 1>(xm, w, stride, cols, length, fetch, sums + m, pitch);
        break;
      case 2:
        TileRow<Weights, 2>(xm, w, stride, cols, length, fetch, sums + m, pitch);
        break;
      case 3:
        TileRow<Weights, 3>(xm, w, stride, cols, length, fetch, sums + m, pitch);
        break;
      case 4:
        TileRow<Weights, 4>(xm, w, stride, cols, length, fetch, sums + m, pitch);
        break;
      default:
        TileRow<Weights, 5>(xm, w, stride, cols, length, fetch, sums + m, pitch);
    }
  }
}

// The scale of weight (n, k).
inline float ScaleOf(const View<2>& scales, int64_t n, int64_t k) {
  return load_as_float(scales.data, scales.dtype, scales.offset(n / WeightMatrix::kBlock, k / WeightMatrix::kBlock));
}

// A task: rows [m0, m0 + rows) of x, w from row n0 on.
template <class Weights>
struct Block {
  using T = typename Weights::T;
  static constexpr bool kScaled = std::is_same_v<Weights, F8Weights>;

  Block(const Product& p, int64_t m0, int64_t n0)
      : p(p),
        m0(m0),
        n0(n0),
        rows(std::min(p.rows, p.M - m0)),
        cols(std::min(kMaxCols, p.N - n0)),
        pitch(rows + 3),
        stride(p.args.w.values.stride[0]),
        w(static_cast<const T*>(p.args.w.values.data) + n0 * stride) {
    std::fill_n(sums, cols * pitch, 0.0f);
  }

  // Decode: weights are converted in flight, as they stream in from memory.
  void MultiplyFewRows() {
    const int64_t panel = std::max<int64_t>(1, kCachedRows / rows) * kChunk;
    for (int64_t p0 = 0; p0 < p.K; p0 += panel) {
      for (int64_t n = 0; n < cols; n += kGroup) {
        for (int64_t k0 = p0; k0 < std::min(p.K, p0 + panel); k0 += kChunk) {
          Chunk<Weights>(p.packed(k0, m0), rows, w + n * stride + k0, stride, std::min(kGroup, cols - n),
                         std::min(kChunk, p.K - k0), kGroup * stride, sums + n * pitch, pitch);
        }
      }
    }
  }

  // Prefill, and scaled weights: a panel of up to kWidth columns is converted once for all rows.
  template <int64_t kWidth>
  void MultiplyPanels() {
    alignas(64) float panel[kWidth * kChunk];
    for (int64_t first = 0; first < cols; first += kWidth) {
      const int64_t width = std::min(kWidth, cols - first);
      for (int64_t k0 = 0; k0 < p.K; k0 += kChunk) {
        const int64_t length = std::min(kChunk, p.K - k0);
        for (int64_t n = 0; n < width; n++) Convert(first + n, k0, length, panel + n * kChunk);
        const int64_t padded = (length + kStep - 1) / kStep * kStep;
        Chunk<F32Weights>(p.packed(k0, m0), rows, panel, kChunk, width, padded, 0, sums + first * pitch, pitch);
      }
    }
  }

  // Weights [k0, k0 + length) of column n, zeros up to a whole step behind them.
  void Convert(int64_t n, int64_t k0, int64_t length, float* out) const {
    const T* column = w + n * stride + k0;
    if constexpr (kScaled) {
      for (int64_t k = 0; k < length; k += WeightMatrix::kBlock) {
        const Vec scale = hn::Set(F(), ScaleOf(p.args.w.scales, n0 + n, k0 + k) * Weights::kUnit);
        ForSteps(column + k, std::min(WeightMatrix::kBlock, length - k), [&](const T* in, int64_t i) HWY_ATTR {
          Vec first, second;
          Weights::Load(in, first, second);
          hn::Store(hn::Mul(first, scale), F(), out + k + i);
          hn::Store(hn::Mul(second, scale), F(), out + k + i + kLanes);
        });
      }
    } else {
      ForSteps(column, length, [out](const T* in, int64_t k) HWY_ATTR {
        hn::Store(Weights::first(in), F(), out + k);
        hn::Store(Weights::second(in), F(), out + k + kLanes);
      });
    }
  }

  void Write() const {
    for (int64_t m = 0; m < rows; m++) {
      float* out = p.args.out.f32(m0 + m, n0);
      for (int64_t n = 0; n < cols; n++) {
        const float sum = sums[n * pitch + m];
        out[n] = p.args.accumulate ? out[n] + sum : sum;
      }
    }
  }

  const Product& p;
  const int64_t m0, n0, rows, cols, pitch, stride;
  const T* w;                             // row n0
  float sums[kMaxCols * (kMaxRows + 3)];  // [cols, pitch], a column's rows side by side
};

template <class Weights>
void Multiply(const Product& p, int64_t m0, int64_t n0) {
  Block<Weights> block(p, m0, n0);
  if (block.rows > kFewRows) {
    block.template MultiplyPanels<kMaxCols>();
  } else if constexpr (Block<Weights>::kScaled) {
    block.template MultiplyPanels<kGroup>();  // which stay in the first-level cache
  } else {
    block.MultiplyFewRows();
  }
  block.Write();
}

// out[m, n] for m in [m0, m0 + p.rows), n in [n0, n0 + kMaxCols), as far as they exist.
inline void MultiplyBlock(const Product& p, int64_t m0, int64_t n0) {
  switch (p.args.w.values.dtype) {
    case DType::f32:
      return Multiply<F32Weights>(p, m0, n0);
    case DType::bf16:
      return Multiply<Bf16Weights>(p, m0, n0);
    case DType::f16:
      return Multiply<F16Weights>(p, m0, n0);
    case DType::f8_e4m3:
      return Multiply<F8Weights>(p, m0, n0);
  }
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
