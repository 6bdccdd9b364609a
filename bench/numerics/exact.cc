#include "numerics/exact.h"

#include <algorithm>
#include <cmath>

namespace deltaring::numerics {

namespace {

double norm_of(std::span<const double> x) {
  double squares = 0;
  for (const double e : x) squares += e * e;
  return std::sqrt(squares);
}

// x / sqrt(sum x^2 + 1e-6) * scale
void normalise(const float* x, double scale, std::vector<double>& to) {
  std::copy_n(x, to.size(), to.begin());
  const double norm = norm_of(to), factor = scale / std::sqrt(norm * norm + 1e-6);
  for (double& e : to) e *= factor;
}

}  // namespace

ExactHead::ExactHead(const Shape& shape)
    : K_(shape.K), V_(shape.V), S_(shape.K * shape.V), q_(shape.K), k_(shape.K), d_(shape.V) {}

void ExactHead::set(const float* S) {
  for (int64_t k = 0; k < K_; k++)
    for (int64_t v = 0; v < V_; v++) S_[k * V_ + v] = S[v * K_ + k];
}

void ExactHead::store(double* S) const {
  for (int64_t k = 0; k < K_; k++)
    for (int64_t v = 0; v < V_; v++) S[v * K_ + k] = S_[k * V_ + v];
}

double ExactHead::norm() const { return norm_of(S_); }

void ExactHead::step(const Tokens& tokens, int64_t t, int64_t head, double* out, Norms* norms) {
  const Shape& s = tokens.shape;
  const int64_t at = t * s.Hv + head, key = (t * s.Hk + head / (s.Hv / s.Hk)) * K_;
  const float* v = &tokens.v[at * V_];
  normalise(&tokens.q[key], 1 / std::sqrt(static_cast<double>(K_)), q_);
  normalise(&tokens.k[key], 1, k_);
  const double decay = std::exp(double{tokens.g[at]}), beta = tokens.beta[at];

  std::fill(d_.begin(), d_.end(), 0.0);
  for (double& e : S_) e *= decay;
  for (int64_t k = 0; k < K_; k++)
    for (int64_t i = 0; i < V_; i++) d_[i] += S_[k * V_ + i] * k_[k];
  if (norms) {
    const std::vector<double> values(v, v + V_);
    *norms = {.kept = norm(), .v = norm_of(values), .seen = norm_of(d_), .q = norm_of(q_)};
  }
  for (int64_t i = 0; i < V_; i++) d_[i] = beta * (v[i] - d_[i]);
  std::fill_n(out, V_, 0.0);
  for (int64_t k = 0; k < K_; k++) {
    double* row = &S_[k * V_];
    for (int64_t i = 0; i < V_; i++) row[i] += d_[i] * k_[k], out[i] += row[i] * q_[k];
  }
}

Exact exact(const Tokens& tokens, std::span<const int64_t> marks) {
  const Shape& s = tokens.shape;
  Exact e{std::vector<double>(tokens.count * s.Hv * s.V),
          std::vector<std::vector<double>>(marks.size(), std::vector<double>(s.state()))};
  for (int64_t h = 0; h < s.Hv; h++) {
    ExactHead head(s);
    size_t mark = 0;
    for (int64_t t = 0; t < tokens.count; t++) {
      head.step(tokens, t, h, &e.out[(t * s.Hv + h) * s.V]);
      if (mark < marks.size() && marks[mark] == t + 1) head.store(&e.states[mark++][h * s.V * s.K]);
    }
  }
  return e;
}

}  // namespace deltaring::numerics
