// The tokens of a segment among each other (gdn_run.h), for a block of rows of S. The rows are the lanes, and some
// tokens go together for the sake of independent chains; every sum runs over ascending tokens, however many those are.
// Included per SIMD target.
#if defined(DELTARING_CPU_GDN_SOLVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARING_CPU_GDN_SOLVE_INL_H_
#undef DELTARING_CPU_GDN_SOLVE_INL_H_
#else
#define DELTARING_CPU_GDN_SOLVE_INL_H_
#endif

#include <algorithm>

#include "backends/cpu/gdn_run.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kSolveTokens = 4, kSolveVectors = 2;
using SolveTag = hn::CappedTag<float, kRowBlock / kSolveVectors>;
using SolveVector = hn::Vec<SolveTag>;

// D of tokens [i0, i0 + kTokens) from D of those before: D_i = beta_i (v_i - S0 k_i) - sum_{j<i} A_ij D_j. All pointers
// at the same rows.
template <int kTokens>
HWY_INLINE void Substitute(const GdnSegment& g, int64_t i0, const float* HWY_RESTRICT dots, const float* HWY_RESTRICT v,
                           int64_t v_stride, float* HWY_RESTRICT D) {
  const SolveTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), m = g.count;
  const float* A = g.A + i0 * m;
  SolveVector x[kTokens][kSolveVectors];
  for (int t = 0; t < kTokens; t++) {
    const auto to = hn::Set(d, g.to[i0 + t]), beta = hn::Set(d, g.tokens[i0 + t].beta);
    for (int c = 0; c < kSolveVectors; c++) {
      const auto seen = hn::Load(d, dots + (i0 + t) * kRowBlock + c * lanes);
      x[t][c] = hn::Mul(beta, hn::NegMulAdd(to, seen, hn::Load(d, v + (i0 + t) * v_stride + c * lanes)));
    }
  }
  for (int64_t j = 0; j < i0; j++) {
    for (int t = 0; t < kTokens; t++) {
      const auto a = hn::Set(d, A[t * m + j]);
      for (int c = 0; c < kSolveVectors; c++)
        x[t][c] = hn::NegMulAdd(a, hn::Load(d, D + j * kRowBlock + c * lanes), x[t][c]);
    }
  }
  for (int j = 0; j < kTokens; j++) {
    for (int c = 0; c < kSolveVectors; c++) hn::Store(x[j][c], d, D + (i0 + j) * kRowBlock + c * lanes);
    for (int t = j + 1; t < kTokens; t++) {
      const auto a = hn::Set(d, A[t * m + i0 + j]);
      for (int c = 0; c < kSolveVectors; c++) x[t][c] = hn::NegMulAdd(a, x[j][c], x[t][c]);
    }
  }
}

// Outputs of tokens [i0, i0 + kTokens): o_i = S0 q_i + sum_{j<=i} P_ij D_j, to out [kTokens] rows.
template <int kTokens>
HWY_INLINE void Outputs(const GdnSegment& g, int64_t i0, const float* HWY_RESTRICT dots, const float* HWY_RESTRICT D,
                        float* const* out) {
  const SolveTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), m = g.count;
  const float *P = g.P + i0 * m, *seen = dots + (m + i0 - g.records) * kRowBlock;
  SolveVector x[kTokens][kSolveVectors];
  for (int t = 0; t < kTokens; t++) {
    const auto to = hn::Set(d, g.to[i0 + t]);
    for (int c = 0; c < kSolveVectors; c++) x[t][c] = hn::Mul(to, hn::Load(d, seen + t * kRowBlock + c * lanes));
  }
  const auto add = [&](int first, int64_t j) HWY_ATTR {
    for (int t = first; t < kTokens; t++) {
      const auto p = hn::Set(d, P[t * m + j]);
      for (int c = 0; c < kSolveVectors; c++)
        x[t][c] = hn::MulAdd(p, hn::Load(d, D + j * kRowBlock + c * lanes), x[t][c]);
    }
  };
  for (int64_t j = 0; j < i0; j++) add(0, j);
  for (int t = 0; t < kTokens; t++) add(t, i0 + t);
  for (int t = 0; t < kTokens; t++)
    for (int c = 0; c < kSolveVectors; c++) hn::StoreU(x[t][c], d, out[t] + c * lanes);
}

// some.operator()<n>(i) for tokens [i, i + n) of [begin, end), kSolveTokens or what is left of them at a time.
template <class Some>
HWY_INLINE void ForTokens(int64_t begin, int64_t end, const Some& some) {
  static_assert(kSolveTokens == 4);
  for (; begin + 4 <= end; begin += 4) some.template operator()<4>(begin);
  if (end - begin == 3) some.template operator()<3>(begin);
  if (end - begin == 2) some.template operator()<2>(begin);
  if (end - begin == 1) some.template operator()<1>(begin);
}

// D [m, kRowBlock] of value dimensions [v0, v0 + kRowBlock), and their outputs.
HWY_INLINE void Solve(const GdnSegment& g, const float* HWY_RESTRICT dots, int64_t v0, int64_t V,
                      float* HWY_RESTRICT D) {
  const int64_t step = kSolveVectors * static_cast<int64_t>(hn::Lanes(SolveTag())), Vp = padded_rows(V);
  HWY_ALIGN float part[kSolveTokens][kRowBlock];
  for (int64_t r = 0; r < kRowBlock; r += step) {
    ForTokens(0, g.count,
              [&]<int kTokens>(int64_t i) HWY_ATTR { Substitute<kTokens>(g, i, dots + r, g.v + v0 + r, Vp, D + r); });
    const int64_t rows = std::min(step, V - v0 - r);
    if (rows <= 0) continue;
    ForTokens(g.records, g.count, [&]<int kTokens>(int64_t i) HWY_ATTR {
      float* out[kTokens];
      for (int t = 0; t < kTokens; t++) out[t] = rows == step ? g.tokens[i + t].out + v0 + r : part[t];
      Outputs<kTokens>(g, i, dots + r, D + r, out);
      for (int t = 0; t < kTokens && rows < step; t++) std::copy_n(part[t], rows, g.tokens[i + t].out + v0 + r);
    });
  }
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
