#include "numerics/extremes.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numbers>

namespace deltaring::numerics {

namespace {

constexpr int64_t kCount = 512, kMarks[] = {16, 64, 256, kCount};

// Sequences of draws.
enum : uint32_t { kQ = 200, kK, kV, kLength, kGate, kBeta, kState };

constexpr double roundoff(DType t) { return t == DType::f32 ? 0x1p-24 : t == DType::bf16 ? 0x1p-8 : 0x1p-11; }

void fill(std::vector<float>& x, size_t count, uint32_t name) {
  x.resize(count);
  for (size_t i = 0; i < count; i++) x[i] = round_to(DType::bf16, static_cast<float>(normal(name, i)));
}

Tokens random_tokens(const Shape& s, int64_t count) {
  Tokens tokens{s, count, {}, {}, {}, std::vector<float>(count * s.Hv), std::vector<float>(count * s.Hv)};
  fill(tokens.q, count * s.Hk * s.K, kQ), fill(tokens.k, count * s.Hk * s.K, kK),
      fill(tokens.v, count * s.Hv * s.V, kV);
  return tokens;
}

// The state that a chain starts from, as the scheme can hold it.
std::vector<float> random_state(const Shape& s, DType dtype) {
  std::vector<float> S(s.state());
  for (size_t i = 0; i < S.size(); i++) S[i] = round_to(dtype, static_cast<float>(normal(kState, i)));
  return S;
}

Tokens extreme_tokens(Keys keys) {
  const Shape s{.Hk = 1, .Hv = Extremes::kGateKinds * Extremes::kBetaKinds, .K = 128, .V = 128};
  Tokens tokens = random_tokens(s, kCount);
  const auto pick = [](const auto& values, int64_t kind, uint32_t name, uint64_t index) {
    const auto n = static_cast<double>(values.size());
    return values[kind < n ? kind : static_cast<size_t>(uniform(name, index) * n)];
  };
  for (int64_t t = 0; t < kCount; t++) {
    for (int64_t h = 0; h < s.Hv; h++) {
      tokens.g[t * s.Hv + h] = pick(Extremes::kGates, h / Extremes::kBetaKinds, kGate, t * s.Hv + h);
      tokens.beta[t * s.Hv + h] = pick(Extremes::kBetas, h % Extremes::kBetaKinds, kBeta, t * s.Hv + h);
    }
    // Collinear: the first token's key, either way round, short and long.
    const auto length =
        static_cast<float>(std::exp(normal(kLength, 2 * t)) * (uniform(kLength, 2 * t + 1) < 0.5 ? -1 : 1));
    for (int64_t k = 0; k < s.K && keys != Keys::any; k++)
      tokens.k[t * s.K + k] = keys == Keys::zero ? 0 : round_to(DType::bf16, length * tokens.k[k]);
  }
  return tokens;
}

// A head of the exact chain beside a bound on what a scheme may be away from it, as Frobenius norms.
class Bound {
 public:
  Bound(const Scheme& scheme, const Shape& shape, const float* initial)
      : F_(scheme.F), u_(roundoff(scheme.state)), floor_(FLT_MIN * std::sqrt(shape.V * shape.K)), head_(shape) {
    if (scheme.state == DType::f16) subnormal_ = 0x1p-25 * std::sqrt(shape.V * shape.K);
    head_.set(initial);
  }

  // Returns what the output [V] may be away from out.
  double step(const Tokens& tokens, int64_t t, int64_t h, double* out) {
    ExactHead::Norms n;
    head_.step(tokens, t, h, out, &n);
    const double g = tokens.g[t * tokens.shape.Hv + h], beta = tokens.beta[t * tokens.shape.Hv + h], S = head_.norm();
    state_ = std::exp(g) * state_ + kSlack * (n.kept * (1 + std::fabs(g)) + beta * (n.v + n.seen)) + floor_;
    const double tolerance = n.q * (state_ + kSlack * S) + floor_;
    if ((t + 1) % F_ == 0) state_ += u_ * (S + state_) + subnormal_;
    return tolerance;
  }
  double state() const { return state_; }
  void store(double* S) const { head_.store(S); }

 private:
  static constexpr double kSlack = 16 * 0x1p-24;

  const int64_t F_;
  const double u_, floor_;
  double subnormal_ = 0, state_ = 0;
  ExactHead head_;
};

double distance(const float* x, const double* exact, int64_t count) {
  double squares = 0;
  for (int64_t i = 0; i < count; i++) squares += (x[i] - exact[i]) * (x[i] - exact[i]);
  return std::isfinite(squares) ? std::sqrt(squares) : std::numeric_limits<double>::infinity();
}

}  // namespace

const char* name_of(Keys keys) { return keys == Keys::any ? "any" : keys == Keys::collinear ? "collinear" : "zero"; }

Extremes run_extremes(const Scheme& scheme, Keys keys, const OpTable& ops, Stream& stream) {
  const Tokens tokens = extreme_tokens(keys);
  const Shape& s = tokens.shape;
  const std::vector<float> initial = random_state(s, scheme.state);
  const Trajectory got = run(scheme, {.T = 8, .all_accepted = false}, tokens, kMarks, initial, ops, stream);
  Extremes worst{std::vector<double>(s.Hv), std::vector<double>(s.Hv)};
  std::vector<double> S(s.V * s.K), out(s.V);
  for (int64_t h = 0; h < s.Hv; h++) {
    Bound bound(scheme, s, &initial[h * s.V * s.K]);
    size_t mark = 0;
    for (int64_t t = 0; t < kCount; t++) {
      const double tolerance = bound.step(tokens, t, h, out.data());
      worst.out[h] = std::max(worst.out[h], distance(&got.out[(t * s.Hv + h) * s.V], out.data(), s.V) / tolerance);
      if (t + 1 != kMarks[mark]) continue;
      bound.store(S.data());
      const double away = distance(&got.states[mark++][h * s.V * s.K], S.data(), s.V * s.K);
      worst.state[h] = std::max(worst.state[h], away / bound.state());
    }
  }
  return worst;
}

std::vector<double> left_after_half_life(const Scheme& scheme, const OpTable& ops, Stream& stream) {
  const Shape s{.Hk = 1, .Hv = kQuiet.size(), .K = 128, .V = 128};
  Tokens tokens = random_tokens(s, kQuiet.back());
  for (size_t i = 0; i < tokens.g.size(); i++)
    tokens.g[i] = static_cast<float>(-std::numbers::ln2 / static_cast<double>(kQuiet[i % kQuiet.size()]));
  const std::vector<float> initial = random_state(s, scheme.state);
  const Schedule schedule{.T = scheme.kind == Scheme::Kind::plain ? 1 : 16};
  const Trajectory got = run(scheme, schedule, tokens, kQuiet, initial, ops, stream);
  std::vector<double> left;
  for (int64_t h = 0; h < s.Hv; h++) {
    double before = 0, after = 0;
    for (int64_t i = h * s.V * s.K; i < (h + 1) * s.V * s.K; i++) {
      before += double{initial[i]} * initial[i], after += double{got.states[h][i]} * got.states[h][i];
    }
    left.push_back(std::sqrt(after / before));
  }
  return left;
}

}  // namespace deltaring::numerics
