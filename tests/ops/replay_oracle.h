// The float64 oracle: what one Gated-DeltaNet layer computes for a request, one token at a time, with no ring, no
// checkpoint and no batch, and by how much a float32 implementation may miss it. Written from DESIGN section 3 alone.
#pragma once
#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/replay_shape.h"

namespace deltaring::replay {

struct Expected {
  double value, tolerance;
};

// The same once it has been stored as t. What float16 cannot hold may have become infinity.
inline Expected stored_as(DType t, const Expected& x) {
  constexpr double kGreatest = 65504;  // of float16
  if (t == DType::f32) return x;
  const double subnormal = t == DType::f16 ? 0x1p-25 : FLT_MIN, size = std::fabs(x.value) + x.tolerance;
  if (t == DType::f16 && size > kGreatest) return {x.value, std::numeric_limits<double>::infinity()};
  return {x.value, x.tolerance + roundoff(t) * size + subnormal};
}

inline bool near(float got, const Expected& want) { return std::fabs(got - want.value) <= want.tolerance; }

inline double silu(double y) { return y / (1 + std::exp(-y)); }

// Conv + SiLU of a channel with `taps` weights w; x(j) is the input `taps - 1 - j` tokens back.
template <class Input>
Expected expected_conv(const float* w, int64_t taps, const Input& x) {
  double sum = 0, size = 0;
  for (int64_t j = 0; j < taps; j++) {
    const double term = double{w[j]} * x(j);
    sum += term, size += std::fabs(term);
  }
  const double y = silu(sum);
  return {y, roundoff(DType::f32) * (8 * size + 8 * std::fabs(y) * (1 + std::fabs(sum))) + FLT_MIN};
}

inline Expected expected_g(float A_log, float dt_bias, float a) {
  const double x = double{a} + dt_bias, rate = std::exp(double{A_log});
  const double softplus = x > 20 ? x : std::log1p(std::exp(x)), slope = 1 / (1 + std::exp(-x));
  const double u = roundoff(DType::f32), size = std::fabs(a) + std::fabs(dt_bias);
  return {-rate * softplus, rate * u * (16 * softplus + 4 * slope * size) + 16 * u * slope * rate * u + FLT_MIN};
}

inline Expected expected_beta(float b) {
  const double y = 1 / (1 + std::exp(-double{b}));
  return {y, roundoff(DType::f32) * 8 * y * (1 + (1 - y) * std::fabs(b)) + FLT_MIN};
}

// One token as the delta rule sees it.
struct TokenInputs {
  const float *q, *k;  // [Hk, K]; q null for a record
  const float *v, *g;  // [Hv, V], [Hv, G]
  const float* beta;   // [Hv]
  double slack = 1;    // what is wrong with g and beta, in units of what one rounding of exact ones is worth
};

// The states of all heads, token by token, with a bound on what float32 arithmetic may have added to each row of S.
// Sizes enter as sums of absolute values, so that the bound serves a token-by-token program as well as one that solves
// for many tokens at once.
class DeltaRule {
 public:
  explicit DeltaRule(const Shape& s)
      : s_(s),
        S_(s.Hv * s.V * s.K),
        size_(S_.size()),
        E_(s.Hv * s.V),
        last_(E_.size()),
        steps_(E_.size()),
        q_(s.K),
        k_(s.K),
        decay_(s.K),
        wear_(s.K) {}

  // Goes on from stored bits [Hv, V, K], which are exact.
  void load(const std::byte* checkpoint) {
    for (size_t i = 0; i < S_.size(); i++) S_[i] = load_as_float(checkpoint, s_.checkpoint, static_cast<int64_t>(i));
    settle();
    std::ranges::fill(E_, 0), std::ranges::fill(steps_, 0);
  }

  // One token. Writes out [Hv, V] unless it is a record.
  void step(const TokenInputs& t, Expected* out) {
    const double scale = s_.scale != 0 ? s_.scale : 1 / std::sqrt(double(s_.K));
    for (int64_t j = 0; j < s_.Hv; j++) {
      const int64_t head = j / (s_.Hv / s_.Hk);
      const double q_size = t.q ? normalise(t.q + head * s_.K, DType::f32, scale, q_) : 0;
      const double k_size = normalise(t.k + head * s_.K, s_.record, 1, k_);
      for (int64_t d = 0; d < s_.K; d++) {
        const double g = t.g[j * s_.G + (s_.G == 1 ? 0 : d)];
        decay_[d] = std::exp(g), wear_[d] = 1 + t.slack * std::fabs(g);
      }
      for (int64_t i = 0; i < s_.V; i++) {
        const int64_t row = j * s_.V + i;
        step_row(row, round_to(s_.record, t.v[row]), t.beta[j], k_size, t.slack);
        if (out) out[row] = output(row, q_size);
      }
    }
  }

  // The state is rounded to the checkpoint's dtype where nobody can see it: whether an element next to a rounding
  // boundary goes up or down is open, all others are exact from here on.
  void round() {
    for (int64_t row = 0; row < s_.Hv * s_.V; row++) {
      double doubt = 0;
      for (int64_t i = row * s_.K; i < (row + 1) * s_.K; i++) {
        if (s_.checkpoint == DType::f32) {
          doubt += std::fabs(S_[i]) * std::fabs(S_[i]);
          continue;
        }
        const double low = rounded(S_[i] - E_[row]), high = rounded(S_[i] + E_[row]);
        S_[i] = rounded(S_[i]), doubt += (high - low) * (high - low);
      }
      E_[row] = s_.checkpoint == DType::f32 ? E_[row] + roundoff(DType::f32) * std::sqrt(doubt) : std::sqrt(doubt);
    }
    settle();
  }

  double state(int64_t i) const { return S_[i]; }

  // True when stored bits are this state rounded to the checkpoint's dtype, up to the bound. A 16-bit state goes on
  // from the stored bits, so that each grain is judged by itself. Off the grid a verify may go on from either side of
  // the rounding that it stores, so the rounding enters the bound.
  bool compare(const std::byte* checkpoint) {
    const double u = roundoff(s_.checkpoint), subnormal = s_.checkpoint == DType::f16 ? 0x1p-25 : FLT_MIN;
    for (int64_t row = 0; row < s_.Hv * s_.V; row++) {
      double rounding = 0;
      for (int64_t i = row * s_.K; i < (row + 1) * s_.K; i++) {
        const double stored = load_as_float(checkpoint, s_.checkpoint, i), error = std::fabs(stored - S_[i]);
        if (!(error <= u * std::fabs(S_[i]) + E_[row] + subnormal)) return false;
        rounding += error * error;
        if (s_.checkpoint != DType::f32) S_[i] = stored;
      }
      if (s_.checkpoint == DType::f32) continue;
      E_[row] = s_.on_grid() ? 0 : std::sqrt(rounding) + last_[row];
    }
    settle();
    return true;
  }

  // What out may differ by when each token may end with one rounding of the state to the checkpoint's dtype.
  double rounded_each_step(int64_t row) const { return steps_[row] / std::sqrt(double(s_.K)); }

 private:
  static constexpr double kSlack = 8;  // roundings a value passes: dots, norms, exp; K terms enter as their norm

  double rounded(double x) const { return round_to(s_.checkpoint, static_cast<float>(x)); }
  void settle() {
    for (size_t i = 0; i < S_.size(); i++) size_[i] = std::fabs(S_[i]);
  }

  // Returns the length of the result.
  double normalise(const float* x, DType t, double scale, std::vector<double>& to) const {
    double sum = 0;
    for (int64_t d = 0; d < s_.K; d++) to[d] = round_to(t, x[d]), sum += to[d] * to[d];
    const double length = s_.norm == QkNorm::l2 ? std::sqrt(sum + 1e-6) : 1;
    for (double& e : to) e *= scale / length;
    return std::fabs(scale) * std::sqrt(sum) / length;
  }

  void step_row(int64_t row, double v, double beta, double k_size, double slack) {
    const double u = roundoff(DType::f32);
    double *S = &S_[row * s_.K], *size = &size_[row * s_.K];
    double kept = 0, seen = 0, seen_size = 0, norm = 0, slowest = 0;
    for (int64_t d = 0; d < s_.K; d++) {
      S[d] *= decay_[d], size[d] *= decay_[d], slowest = std::max(slowest, decay_[d]);
      seen += S[d] * k_[d], seen_size += size[d] * std::fabs(k_[d]), kept += std::pow(size[d] * wear_[d], 2);
    }
    const double delta = beta * (v - seen);
    for (int64_t d = 0; d < s_.K; d++) {
      S[d] += delta * k_[d], size[d] += std::fabs(delta * k_[d]), norm += S[d] * S[d];
    }
    // What is wrong with S passes (1 - beta k k^T), which lengthens nothing unless a key is long.
    const double growth = slowest * std::max(1.0, std::fabs(1 - beta * k_size * k_size));
    last_[row] = kSlack * u * (std::sqrt(kept) + slack * beta * (std::fabs(v) + seen_size) * k_size);
    E_[row] = growth * E_[row] + last_[row];
    steps_[row] = growth * steps_[row] + 2 * roundoff(s_.checkpoint) * std::sqrt(norm) + E_[row];
  }

  Expected output(int64_t row, double q_size) const {
    double o = 0, norm = 0;
    for (int64_t d = 0; d < s_.K; d++) o += S_[row * s_.K + d] * q_[d], norm += std::pow(size_[row * s_.K + d], 2);
    return {o, q_size * (E_[row] + kSlack * roundoff(DType::f32) * std::sqrt(norm)) + FLT_MIN};
  }

  Shape s_;
  std::vector<double> S_, size_;          // [Hv, V, K]; size: the absolute values that S was summed from since settled
  std::vector<double> E_, last_, steps_;  // [Hv, V] bounds: f32 so far, f32 of the last step, a rounding each step
  std::vector<double> q_, k_;             // [K] of the current head
  std::vector<double> decay_, wear_;      // [K] e^g, and what an error of e^g weighs
};

}  // namespace deltaring::replay
