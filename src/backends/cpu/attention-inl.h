// Kernels of the cpu attention over one block of positions. Included once per SIMD target. attention_tile.h states the
// order of operations they keep.
#if defined(DELTARING_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARING_CPU_ATTENTION_INL_H_
#undef DELTARING_CPU_ATTENTION_INL_H_
#else
#define DELTARING_CPU_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <limits>
#include <type_traits>

#include "backends/cpu/attention_tile.h"
#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

inline int64_t VectorLanes() { return static_cast<int64_t>(hn::Lanes(Floats())); }

// Full vector of elements of a page (float, hwy::bfloat16_t or hwy::float16_t). Exact.
template <class T>
HWY_INLINE Vector LoadFloats(const T* p) {
  const Floats d;
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, p);
  } else {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, Floats>(), p));
  }
}

// Where up to kBlock consecutive positions of one kv head are stored; a row is D elements.
template <class T>
struct BlockRows {
  const T* keys[kBlock];
  const T* values[kBlock];
  int64_t count = 0;
};

// Rows that will be needed soon, brought into the cache a few at a time while others are computed on.
template <class T>
struct Ahead {
  const T* const* rows;
  int64_t count, D;
  int64_t next = 0;

  void Fetch(int64_t few) {
    constexpr int64_t kLine = 64 / sizeof(T);
    for (const int64_t end = std::min(next + few, count); next < end; next++) {
      for (int64_t c = 0; c < D; c += kLine) hwy::Prefetch(rows[next] + c);
    }
  }
};

// e^x for x <= 0. hn::Exp alone would turn NaN into 0.
HWY_INLINE Vector ExpOrNaN(Vector x) { return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(Floats(), x)); }
inline float ExpOrNaN(float x) { return hn::GetLane(ExpOrNaN(hn::Set(Floats(), x))); }

// What is subtracted from scores before exp; a maximum of -inf means that nothing counts so far.
inline float Base(float max) { return max == -std::numeric_limits<float>::infinity() ? 0.0f : max; }

// sums[i] = sum of the lanes of v[i], each in the same order: within every 128 bits (0 + 2) + (1 + 3), then these
// ascending.
HWY_INLINE void SumLanes4(const Vector* v, float* HWY_RESTRICT sums) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 4; i++) sums[i] = hn::GetLane(v[i]);
#else
  const Floats d;
  const hn::Repartition<uint64_t, Floats> d64;
  const hn::FixedTag<float, 4> d4;
  const auto pair = [&](Vector a, Vector b) {
    return hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto p01 = pair(v[0], v[1]), p23 = pair(v[2], v[3]);
  const Vector quads =
      hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, p01, p23)), hn::BitCast(d, hn::InterleaveUpper(d64, p01, p23)));
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(quads, d, lanes);
  auto sum = hn::Load(d4, lanes);
  for (int64_t i = 4; i < VectorLanes(); i += 4) sum = hn::Add(sum, hn::Load(d4, lanes + i));
  hn::Store(sum, d4, sums);
#endif
}

// scores[m][j] = q[m] . keys[j] for 4 queries of dim floats; scores has kBlock columns. fetch() runs every two keys.
template <class T, class Fetch>
HWY_INLINE void Scores(const float* HWY_RESTRICT q, int64_t dim, const T* const* keys, int64_t count,
                       float* HWY_RESTRICT scores, const Fetch& fetch) {
  const Floats d;
  for (int64_t j = 0; j < count; j += 2) {
    fetch();
    const T* HWY_RESTRICT key[2] = {keys[j], keys[std::min(j + 1, count - 1)]};
    Vector sum[2][kRegisterQueries];
    for (auto& of_key : sum) std::fill_n(of_key, kRegisterQueries, hn::Zero(d));
    for (int64_t c = 0; c < dim; c += VectorLanes()) {
      const Vector k0 = LoadFloats(key[0] + c), k1 = LoadFloats(key[1] + c);
      for (int m = 0; m < kRegisterQueries; m++) {
        const Vector x = hn::Load(d, q + m * dim + c);
        sum[0][m] = hn::MulAdd(x, k0, sum[0][m]);
        sum[1][m] = hn::MulAdd(x, k1, sum[1][m]);
      }
    }
    for (int r = 0; r < 2 && j + r < count; r++) {
      HWY_ALIGN float dots[kRegisterQueries];
      SumLanes4(sum[r], dots);
      for (int m = 0; m < kRegisterQueries; m++) scores[m * kBlock + j + r] = dots[m];
    }
  }
}

// One step of the online softmax of one query: turns its scores of a block into weights, of which [from, to) count.
// Returns the factor that brings earlier weights to the new maximum.
HWY_INLINE float Weigh(float* HWY_RESTRICT scores, int64_t from, int64_t to, float& max, float& sum) {
  const Floats d;
  std::fill(scores, scores + from, -std::numeric_limits<float>::infinity());
  std::fill(scores + to, scores + kBlock, -std::numeric_limits<float>::infinity());
  Vector largest = hn::Load(d, scores);
  for (int64_t j = VectorLanes(); j < kBlock; j += VectorLanes()) largest = hn::Max(largest, hn::Load(d, scores + j));
  const float block_max = hn::GetLane(hn::MaxOfLanes(d, largest));
  const float new_max = block_max > max ? block_max : max;  // never NaN

  const Vector base = hn::Set(d, Base(new_max));
  Vector total = hn::Zero(d);
  for (int64_t j = 0; j < kBlock; j += VectorLanes()) {
    const Vector weight = ExpOrNaN(hn::Sub(hn::Load(d, scores + j), base));
    hn::Store(weight, d, scores + j);
    total = hn::Add(total, weight);
  }
  const float factor = ExpOrNaN(max - Base(new_max));
  sum = sum * factor + hn::GetLane(hn::SumOfLanes(d, total));
  max = new_max;
  return factor;
}

// out[m] = factor[m] out[m] + sum over j < count of weights[m][j] values[j], for 4 queries; dim is a multiple of two
// vectors. fetch() runs every two vectors.
template <class T, class Fetch>
HWY_INLINE void AddValues(const float* HWY_RESTRICT weights, const float* factor, const T* const* values, int64_t count,
                          int64_t dim, float* HWY_RESTRICT out, const Fetch& fetch) {
  const Floats d;
  const int64_t lanes = VectorLanes();
  for (int64_t c = 0; c < dim; c += 2 * lanes) {
    fetch();
    Vector sum[2][kRegisterQueries];
    for (int m = 0; m < kRegisterQueries; m++) {
      const Vector f = hn::Set(d, factor[m]);
      sum[0][m] = hn::Mul(f, hn::Load(d, out + m * dim + c));
      sum[1][m] = hn::Mul(f, hn::Load(d, out + m * dim + c + lanes));
    }
    for (int64_t j = 0; j < count; j++) {
      const Vector v0 = LoadFloats(values[j] + c), v1 = LoadFloats(values[j] + c + lanes);
      for (int m = 0; m < kRegisterQueries; m++) {
        const Vector w = hn::Set(d, weights[m * kBlock + j]);
        sum[0][m] = hn::MulAdd(w, v0, sum[0][m]);
        sum[1][m] = hn::MulAdd(w, v1, sum[1][m]);
      }
    }
    for (int m = 0; m < kRegisterQueries; m++) {
      hn::Store(sum[0][m], d, out + m * dim + c);
      hn::Store(sum[1][m], d, out + m * dim + c + lanes);
    }
  }
}

// out += sum over from <= j < to of weights[j] values[j], for one query.
template <class T>
HWY_INLINE void AddValues1(const float* HWY_RESTRICT weights, const T* const* values, int64_t from, int64_t to,
                           int64_t dim, float* HWY_RESTRICT out) {
  const Floats d;
  for (int64_t c = 0; c < dim; c += VectorLanes()) {
    Vector sum = hn::Load(d, out + c);
    for (int64_t j = from; j < to; j++) sum = hn::MulAdd(hn::Set(d, weights[j]), LoadFloats(values[j] + c), sum);
    hn::Store(sum, d, out + c);
  }
}

// out = factor out, for one query.
HWY_INLINE void Scale1(float factor, int64_t dim, float* HWY_RESTRICT out) {
  const Floats d;
  for (int64_t c = 0; c < dim; c += VectorLanes()) {
    hn::Store(hn::Mul(hn::Set(d, factor), hn::Load(d, out + c)), d, out + c);
  }
}

// Takes the tile through one block, whose first position is `begin`. q [padded queries, dim] is scaled. Meanwhile
// fetches what comes `soon` (after the scores) and `later` (after the values).
template <class T, class Stored>
void AttendBlock(const QueryTile& tile, const float* q, int64_t dim, int64_t begin, const BlockRows<T>& block,
                 Ahead<Stored> soon, Ahead<Stored> later, const Partial& part) {
  HWY_ALIGN float scores[kRegisterQueries * kBlock];
  const int64_t groups = tile.padded_queries() / kRegisterQueries;
  const auto fetch_soon = [&, few = hwy::DivCeil(2 * soon.count, kBlock * groups)] { soon.Fetch(few); };
  const auto fetch_later = [&, few = hwy::DivCeil(2 * VectorLanes() * later.count, dim * groups)] { later.Fetch(few); };
  for (int64_t m = 0; m < tile.padded_queries(); m += kRegisterQueries) {
    int64_t from[kRegisterQueries], to[kRegisterQueries];  // what each query sees of the block; both ascending
    for (int i = 0; i < kRegisterQueries; i++) {
      to[i] = std::clamp<int64_t>(tile.visible_end(m + i) - begin, 0, block.count);
      from[i] = std::clamp<int64_t>(tile.visible_begin(m + i) - begin, 0, to[i]);
    }
    constexpr int kLast = kRegisterQueries - 1;
    if (to[kLast] == from[0]) continue;
    Scores(q + m * dim, dim, block.keys, to[kLast], scores, fetch_soon);
    float factor[kRegisterQueries];
    for (int i = 0; i < kRegisterQueries; i++) {
      factor[i] = Weigh(scores + i * kBlock, from[i], to[i], part.max[m + i], part.sum[m + i]);
    }
    int64_t done[kRegisterQueries];  // positions of the block before these are added
    std::copy_n(from, kRegisterQueries, done);
    if (from[kLast] == from[0] && from[0] <= to[0]) {
      AddValues(scores + from[0], factor, block.values + from[0], to[0] - from[0], dim, part.out + m * dim,
                fetch_later);
      std::fill_n(done, kRegisterQueries, to[0]);
    } else {  // the edge of a window: values go to each query in the same order alone
      for (int i = 0; i < kRegisterQueries; i++) Scale1(factor[i], dim, part.out + (m + i) * dim);
    }
    for (int i = 0; i < kRegisterQueries; i++) {
      if (done[i] >= to[i]) continue;
      AddValues1(scores + i * kBlock, block.values, done[i], to[i], dim, part.out + (m + i) * dim);
    }
  }
}

// rows[j] [D] of a page as floats in out[j] [dim], zero padded; returns where each one is in `rows_out`.
template <class T>
void Convert(const T* const* rows, int64_t count, int64_t D, int64_t dim, int64_t stride, float* out,
             const float** rows_out) {
  for (int64_t j = 0; j < count; j++) {
    float* row = out + j * stride;
    int64_t c = 0;
    for (; c + VectorLanes() <= D; c += VectorLanes()) hn::Store(LoadFloats(rows[j] + c), Floats(), row + c);
    HWY_ALIGN T rest[HWY_MAX_BYTES / sizeof(T)] = {};
    std::copy(rows[j] + c, rows[j] + D, rest);
    for (int64_t i = c; i < dim; i += VectorLanes()) {
      hn::Store(i == c ? LoadFloats(rest) : hn::Zero(Floats()), Floats(), row + i);
    }
    rows_out[j] = row;
  }
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
