// The float64 oracle of the replay core and the tokens it is fed: what one Gated-DeltaNet layer computes for a request,
// one token at a time, with no ring, no checkpoint and no batch. Written from DESIGN section 3 alone.
#pragma once
#include <fmt/format.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/view.h"
#include "ops/cursor.h"

namespace deltaring::replay {

// What a layer is made of. The ring (T, R) is not part of it: no result may depend on that.
struct Shape {
  int64_t Hk = 1, Hv = 1, K = 16, V = 24, taps = 4;
  DType checkpoint = DType::f32, record = DType::f32;
  int64_t F = 8;
  FoldPolicy policy = FoldPolicy::grid;

  int64_t channels() const { return 2 * Hk * K + Hv * V; }  // of the conv: q, k, v side by side
  int64_t grain() const { return policy == FoldPolicy::grid ? F : 0; }
  std::string name() const {
    return fmt::format("Hk={} Hv={} K={} V={} checkpoint={} record={} F={} {}", Hk, Hv, K, V, name_of(checkpoint),
                       name_of(record), F, policy == FoldPolicy::grid ? "grid" : "every");
  }
};

// Largest relative error of one rounding to t.
constexpr double roundoff(DType t) { return t == DType::f32 ? 0x1p-24 : t == DType::bf16 ? 0x1p-8 : 0x1p-11; }

// Uniform in [-1, 1): a pure function of its keys.
inline float uniform(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  uint64_t h = 0x9e3779b97f4a7c15;
  for (uint64_t key : {a, b, c, d}) {
    h = (h ^ key) * 0xbf58476d1ce4e5b9;
    h = (h ^ (h >> 29)) * 0x94d049bb133111eb;
    h ^= h >> 32;
  }
  return static_cast<float>(h >> 40) * 0x1p-23f - 1.0f;
}

// Weights of the layer. Decays range from almost none to almost everything, so that states are both old and young.
struct Parameters {
  std::vector<float> weight, A_log, dt_bias;  // [C, taps], [Hv], [Hv]

  explicit Parameters(const Shape& s) : weight(s.channels() * s.taps), A_log(s.Hv), dt_bias(s.Hv) {
    for (size_t i = 0; i < weight.size(); i++) weight[i] = uniform(1, i, 0, 0);
    for (int64_t j = 0; j < s.Hv; j++) A_log[j] = -2.5f + 2.5f * uniform(2, j, 0, 0), dt_bias[j] = uniform(3, j, 0, 0);
  }
};

// What the token of a position holds. Everything but `truth` stands for a draft that will be rejected.
enum class Draft { truth, other, nan, nan_gate, inf, minus_inf, huge };
inline constexpr Draft kDrafts[] = {Draft::other, Draft::nan,       Draft::nan_gate,
                                    Draft::inf,   Draft::minus_inf, Draft::huge};

// A request made of numerical corners: gates at their limits, repeated keys, zero vectors, large and tiny inputs.
inline constexpr int64_t kCornerRequest = 1000;

// The layer's inputs for one token: x [C] of the conv, raw gates a, b [Hv].
inline void fill_token(const Shape& s, int64_t request, int64_t position, Draft draft, float* x, float* a, float* b) {
  const uint64_t salt = static_cast<uint64_t>(draft);
  for (int64_t c = 0; c < s.channels(); c++) x[c] = 1.5f * uniform(100 + request, position, c, salt);
  for (int64_t j = 0; j < s.Hv; j++) {
    a[j] = 3.0f * uniform(200 + request, position, j, salt), b[j] = 4.0f * uniform(300 + request, position, j, salt);
  }
  if (request == kCornerRequest) {
    constexpr float kGate[] = {-100.0f, -16.0f, 0.0f, 19.0f, 21.0f, 60.0f}, kBeta[] = {-100.0f, 0.0f, 20.0f, 100.0f};
    constexpr float kScale[] = {1.0f, 0.0f, 1e3f, 1e-4f};
    for (int64_t j = 0; j < s.Hv; j++) a[j] = kGate[(position + j) % 6], b[j] = kBeta[(position / 2 + j) % 4];
    for (int64_t c = 0; c < s.channels(); c++) x[c] = kScale[position / 6 % 4] * uniform(400, c, 0, salt);
  }
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float bad = draft == Draft::inf ? inf : draft == Draft::minus_inf ? -inf : draft == Draft::huge ? 1e38f : nan;
  if (draft == Draft::truth || draft == Draft::other) return;
  for (int64_t j = 0; j < s.Hv; j++) a[j] = b[j] = bad;
  if (draft == Draft::nan_gate) return;
  for (int64_t c = 0; c < s.channels(); c++) x[c] = bad;
}

struct Expected {
  double value, tolerance;
};

inline double silu(double y) { return y / (1 + std::exp(-y)); }

// Conv + SiLU of channel c at the last of `taps` inputs; x(j, c) is the input `taps - 1 - j` tokens back.
template <class Input>
Expected expected_conv(const Shape& s, const Parameters& w, int64_t c, const Input& x) {
  double sum = 0, size = 0;
  for (int64_t j = 0; j < s.taps; j++) {
    const double term = double{w.weight[c * s.taps + j]} * x(j, c);
    sum += term, size += std::fabs(term);
  }
  const double y = silu(sum);
  return {y, roundoff(DType::f32) * (8 * size + 8 * std::fabs(y) * (1 + std::fabs(sum))) + FLT_MIN};
}

inline Expected expected_g(const Parameters& w, int64_t j, float a) {
  const double x = double{a} + w.dt_bias[j], rate = std::exp(double{w.A_log[j]});
  const double softplus = x > 20 ? x : std::log1p(std::exp(x)), slope = 1 / (1 + std::exp(-x));
  const double u = roundoff(DType::f32), size = std::fabs(a) + std::fabs(w.dt_bias[j]);
  return {-rate * softplus, rate * u * (16 * softplus + 4 * slope * size) + 16 * u * slope * rate * u + FLT_MIN};
}

inline Expected expected_beta(float b) {
  const double beta = 1 / (1 + std::exp(-double{b}));
  return {beta, roundoff(DType::f32) * beta * (8 + 2 * std::fabs(b)) + FLT_MIN};
}

// The delta rule in double, with a bound of what f32 arithmetic may add. Rows of S evolve alone and every step is a
// contraction, so the bound of row v is a recursion: E <- e^g E + c u (norms of what the step adds and keeps).
class DeltaRule {
 public:
  explicit DeltaRule(const Shape& s)
      : s_(s), S_(s.Hv * s.V * s.K), E_(s.Hv * s.V), last_(s.Hv * s.V), steps_(s.Hv * s.V), q_(s.K), k_(s.K) {}

  // One token: qkv [C] as the conv gave it, g and beta [Hv]. Writes out [Hv, V].
  void step(const float* qkv, const float* g, const float* beta, Expected* out) {
    for (int64_t j = 0; j < s_.Hv; j++) {
      const int64_t head = j / (s_.Hv / s_.Hk);
      const double q_norm = normalise(qkv + head * s_.K, DType::f32, 1 / std::sqrt(double(s_.K)), q_);
      normalise(qkv + (s_.Hk + head) * s_.K, s_.record, 1, k_);
      const float* v = qkv + 2 * s_.Hk * s_.K + j * s_.V;
      for (int64_t i = 0; i < s_.V; i++) {
        out[j * s_.V + i] = step_row(j * s_.V + i, round_to(s_.record, v[i]), g[j], beta[j], q_norm);
      }
    }
  }

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
      E_[row] = s_.policy == FoldPolicy::grid ? 0 : std::sqrt(rounding) + last_[row];
    }
    return true;
  }

  // What out may differ by when each token may end with one rounding of the state to the checkpoint's dtype.
  double rounded_each_step(int64_t row) const { return steps_[row] / std::sqrt(double(s_.K)); }

 private:
  static constexpr double kSlack = 16;  // roundings a value passes: dots, norms, exp; K terms enter as their norm

  double normalise(const float* x, DType t, double scale, std::vector<double>& to) const {
    double sum = 0;
    for (int64_t d = 0; d < s_.K; d++) to[d] = round_to(t, x[d]), sum += to[d] * to[d];
    for (double& e : to) e *= scale / std::sqrt(sum + 1e-6);
    return scale * std::sqrt(sum / (sum + 1e-6));
  }

  Expected step_row(int64_t row, double v, double g, double beta, double q_norm) {
    const double u = roundoff(DType::f32), decay = std::exp(g);
    double *S = &S_[row * s_.K], kept = 0, seen = 0, norm = 0, o = 0;
    for (int64_t d = 0; d < s_.K; d++) S[d] *= decay, seen += S[d] * k_[d], kept += S[d] * S[d];
    const double delta = beta * (v - seen);
    for (int64_t d = 0; d < s_.K; d++) S[d] += delta * k_[d], o += S[d] * q_[d], norm += S[d] * S[d];
    kept = std::sqrt(kept), norm = std::sqrt(norm);
    last_[row] = kSlack * u * (kept * (1 + std::fabs(g)) + beta * (std::fabs(v) + std::fabs(seen)));
    E_[row] = decay * E_[row] + last_[row];
    steps_[row] = decay * steps_[row] + 2 * roundoff(s_.checkpoint) * norm + E_[row];
    return {o, q_norm * (E_[row] + kSlack * u * norm) + FLT_MIN};
  }

  Shape s_;
  std::vector<double> S_;                 // [Hv, V, K]
  std::vector<double> E_, last_, steps_;  // [Hv, V] bounds: f32 so far, f32 of the last step, a rounding each step
  std::vector<double> q_, k_;             // [K] of the current head
};

}  // namespace deltaring::replay
