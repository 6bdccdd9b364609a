#include "backends/reference/delta_rule.h"

#include <cmath>

namespace deltaring::reference {

namespace {

// A vector as it reads back after a store as `stored`.
std::vector<double> read(const View<1>& x, DType stored) {
  std::vector<double> values(x.shape[0]);
  for (int64_t i = 0; i < x.shape[0]; i++) values[i] = round_to(stored, load_as_float(x.data, x.dtype, i));
  return values;
}

std::vector<double> normalised(std::vector<double> x, QkNorm norm, double scale) {
  double squares = 0;
  for (const double e : x) squares += e * e;
  const double length = norm == QkNorm::l2 ? std::sqrt(squares + 1e-6) : 1;
  for (double& e : x) e = e / length * scale;
  return x;
}

}  // namespace

Token token_of(const Inputs& in, int64_t head, int64_t token) {
  const int64_t K = in.k.shape[2], key_head = head / (in.v.shape[1] / in.k.shape[1]);
  const double scale = in.scale != 0 ? in.scale : 1 / std::sqrt(static_cast<double>(K));
  return {.q = normalised(read(in.q[token][key_head], DType::f32), in.norm, scale),
          .k = normalised(read(in.k[token][key_head], in.record), in.norm, 1),
          .v = read(in.v[token][head], in.record),
          .g = read(in.g[token][head], DType::f32),
          .beta = *in.beta.f32(token, head)};
}

Token record_of(const GdnState& s, QkNorm norm, int32_t seat, int64_t head, int64_t p) {
  const int64_t key_head = head / (s.checkpoint.shape[1] / s.record_k.shape[1]), slot = p % s.record_k.shape[2];
  const DType record = s.record_k.dtype;
  return {.q = {},
          .k = normalised(read(s.record_k[seat][key_head][slot], record), norm, 1),
          .v = read(s.record_v[seat][head][slot], record),
          .g = read(s.record_g[seat][head][slot], DType::f32),
          .beta = *s.record_beta.f32(seat, head, slot)};
}

DeltaRule::DeltaRule(const View<2>& from) : V_(from.shape[0]), K_(from.shape[1]), S_(V_ * K_) {
  for (int64_t v = 0; v < V_; v++) {
    for (int64_t k = 0; k < K_; k++) S_[v * K_ + k] = load_as_float(from.data, from.dtype, from.offset(v, k));
  }
}

void DeltaRule::step(const Token& t, float* out) {
  std::vector<double> decay(K_, std::exp(t.g[0]));
  for (size_t k = 1; k < t.g.size(); k++) decay[k] = std::exp(t.g[k]);
  for (int64_t v = 0; v < V_; v++) {
    double* row = &S_[v * K_];
    double projected = 0, o = 0;
    for (int64_t k = 0; k < K_; k++) row[k] *= decay[k], projected += row[k] * t.k[k];
    const double d = t.beta * (t.v[v] - projected);
    for (int64_t k = 0; k < K_; k++) row[k] += d * t.k[k];
    for (int64_t k = 0; k < K_ && out; k++) o += row[k] * t.q[k];
    if (out) out[v] = static_cast<float>(o);
  }
}

void DeltaRule::round(DType t) {
  for (double& s : S_) s = round_to(t, static_cast<float>(s));
}

void DeltaRule::store(const View<2>& to) const {
  for (int64_t v = 0; v < V_; v++) {
    for (int64_t k = 0; k < K_; k++)
      store_from_float(to.data, to.dtype, to.offset(v, k), static_cast<float>(S_[v * K_ + k]));
  }
}

}  // namespace deltaring::reference
