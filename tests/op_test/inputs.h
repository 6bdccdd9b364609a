// What the jobs share: rows of a case, tokens of the delta rule, and their check.
#pragma once
#include "op_test/job.h"
#include "ops/replay_oracle.h"

namespace deltaring::op_test {

struct PlannedRow {
  int32_t seat;
  int64_t before;  // tokens behind the checkpoint, or before the window
  int32_t length;
};

// Two seats more than rows, in descending order. A ragged case has its second row without a seat.
inline int64_t seats_of(const Case& c) { return c.B + 2; }
inline std::vector<PlannedRow> plan_rows(const Case& c) {
  constexpr int64_t kLengths[] = {-1, 3, 0, 1};  // -1: T
  std::vector<PlannedRow> rows;
  for (int64_t b = 0; b < c.B; b++) {
    const int64_t wanted = c.ragged ? kLengths[b % 4] : -1, length = wanted < 0 ? c.T : std::min(wanted, c.T);
    const bool seatless = c.ragged && b == 1;
    rows.push_back({.seat = seatless ? -1 : static_cast<int32_t>(seats_of(c) - 2 - b),
                    .before = c.ragged ? (c.n + 5 * b) % (c.n + 1) : c.n,
                    .length = static_cast<int32_t>(length)});
  }
  return rows;
}

// Weights of an op in the machine's memory.
inline replay::Buffer upload(const replay::Device& device, const std::vector<float>& values) {
  replay::Buffer buffer(device, values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(buffer.data(), values.data(), values.size() * sizeof(float));
  buffer.push();
  return buffer;
}
inline float* floats(const replay::Buffer& buffer) { return reinterpret_cast<float*>(buffer.device()); }

inline std::vector<float> noise(uint64_t seed, uint64_t what, int64_t count, float size, float offset = 0) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; i++) values[i] = offset + size * replay::uniform(seed, what, 0, i);
  return values;
}

// q, k, v and gates of packed tokens, and where they came from.
class Tokens {
 public:
  Tokens(const replay::Device& device, const Shape& s, int64_t count)
      : s_(s),
        weights_(s),
        A_log_(upload(device, weights_.A_log)),
        dt_bias_(upload(device, weights_.dt_bias)),
        qkv_(device, count, s.channels(), s.tokens),
        g_(device, count, s.Hv * s.G, s.gates()),
        beta_(device, count, s.Hv, s.gates()),
        out_(device, count, s.Hv * s.V, s.out),
        values_(count * width()) {}

  // Token t of the list is the one at position p of row b.
  void fill(const Case& c, uint64_t seed, int64_t t, int64_t b, int64_t p) {
    const Shape& s = s_;
    const auto noise = [&](uint64_t what, int64_t i) { return replay::uniform(seed, what, 1000 * b + p, i); };
    float *q = token(t), *k = q + s.Hk * s.K, *v = k + s.Hk * s.K, *g = v + s.Hv * s.V, *beta = g + s.Hv * s.G;
    // Keys that nobody normalises are of length 1 or less.
    const float length = s.norm == QkNorm::none ? 1 / std::sqrt(static_cast<float>(s.K)) : 1;
    for (int64_t i = 0; i < s.Hk * s.K; i++) q[i] = noise(1, i), k[i] = length * noise(2, i);
    for (int64_t i = 0; i < s.Hv * s.V; i++) v[i] = noise(3, i);
    for (int64_t i = 0; i < s.Hv * s.G; i++) g[i] = s.fused ? 4 * noise(4, i) : -std::exp(3 * noise(4, i) - 2);
    for (int64_t i = 0; i < s.Hv; i++) beta[i] = s.fused ? 4 * noise(5, i) : 0.5f + 0.5f * noise(5, i);
    if (c.corners) make_corner(seed, t, b, p);
    for (float* x = q; x < g; x++) *x = round_to(s.tokens, *x);
    for (float* x = g; x < q + width(); x++) *x = round_to(s.gates(), *x);
    qkv_.set_row(t, q), g_.set_row(t, g), beta_.set_row(t, beta);
    for (int64_t i = 0; i < s.Hv && s.fused; i++) beta[i] = static_cast<float>(replay::expected_beta(beta[i]).value);
    for (int64_t i = 0; i < s.Hv * s.G && s.fused; i++) g[i] = static_cast<float>(expected_g(i, g[i]).value);
  }
  void push() {
    for (const replay::Matrix* m : {&qkv_, &g_, &beta_, &out_}) m->push();
    copies_ = {qkv_.copy(), g_.copy(), beta_.copy()};
  }

  View<3> q() const { return qkv_.heads(0, s_.Hk, s_.K); }
  View<3> k() const { return qkv_.heads(s_.Hk * s_.K, s_.Hk, s_.K); }
  View<3> v() const { return qkv_.heads(2 * s_.Hk * s_.K, s_.Hv, s_.V); }
  View<3> g() const { return g_.heads(0, s_.Hv, s_.G); }
  View<2> beta() const { return beta_.view(); }
  GateWeights gates() const {
    return s_.fused ? GateWeights{.A_log = floats(A_log_), .dt_bias = floats(dt_bias_)} : GateWeights{};
  }
  View<3> out() const { return out_.heads(0, s_.Hv, s_.V); }
  // What the op is to compute with: g and beta as they are used.
  replay::TokenInputs inputs(int64_t t) const {
    const float *q = &values_[t * width()], *v = q + 2 * s_.Hk * s_.K, *g = v + s_.Hv * s_.V;
    return {.q = q, .k = q + s_.Hk * s_.K, .v = v, .g = g, .beta = g + s_.Hv * s_.G, .slack = s_.fused ? kFused : 1};
  }
  // Whether g and beta, made from raw gates, are near enough.
  bool near_gates(int64_t t, const float* g, const float* beta) const {
    bool near = true;
    for (int64_t i = 0; i < s_.Hv * s_.G; i++) near = near && replay::near(g[i], expected_g(i, g_.at(t, i)));
    for (int64_t i = 0; i < s_.Hv; i++) near = near && replay::near(beta[i], replay::expected_beta(beta_.at(t, i)));
    return near;
  }
  int64_t count() const { return qkv_.rows(); }
  // Of the float32 outputs that were checked.
  const RelativeError& error() const { return error_; }
  // q, k, v, g, beta in, out out.
  int64_t bytes() const {
    int64_t total = 0;
    for (const replay::Matrix* m : {&qkv_, &g_, &beta_, &out_})
      total += m->rows() * m->columns() * static_cast<int64_t>(size_of(m->dtype()));
    return total;
  }

  // After a call: inputs and gaps as they were.
  void pull_and_check(Failures& failures) {
    for (const replay::Matrix* m : {&qkv_, &g_, &beta_, &out_}) {
      m->pull();
      if (!m->gaps_intact()) failures.push_back("a token buffer was written out of bounds");
    }
    if (!qkv_.equals(copies_[0]) || !g_.equals(copies_[1]) || !beta_.equals(copies_[2]))
      failures.push_back("an input was written");
  }
  // Outputs of token t of row b: zeros without a seat (want null), else near the oracle.
  void check_out(int64_t t, int64_t b, const replay::Expected* want, Failures& failures) {
    for (int64_t i = 0; i < s_.Hv * s_.V; i++) {
      const float got = out_.at(t, i);
      const replay::Expected expected = want ? replay::stored_as(s_.out, want[i]) : replay::Expected{0, 0};
      if (s_.out == DType::f32) error_.add(got, expected.value);
      if (replay::near(got, expected)) continue;
      return failures.push_back(fmt::format("row {}: output {} of head {} of token {} is {}, oracle {} +- {}", b,
                                            i % s_.V, i / s_.V, t, got, expected.value, expected.tolerance));
    }
  }

 private:
  // Gates made in float32 (expected_g, expected_beta) against exact ones.
  static constexpr double kFused = 10;

  int64_t width() const { return s_.channels() + s_.Hv * (s_.G + 1); }
  float* token(int64_t t) { return &values_[t * width()]; }
  replay::Expected expected_g(int64_t channel, float a) const {
    return replay::expected_g(weights_.A_log[channel / s_.G], weights_.dt_bias[channel], a);
  }

  void make_corner(uint64_t seed, int64_t t, int64_t b, int64_t p) {
    constexpr float kDecay[] = {0, -1e-7f, -20, -80, -0.5f, -3}, kBeta[] = {0, 1, 0.5f, 1};
    constexpr float kLong[] = {1, 1, 1e3f, -2, 0, 1e-4f, 1, 1}, kShort[] = {1, 1, 0.5f, -1, 0, 1e-4f, 1, 1};
    const Shape& s = s_;
    float *q = token(t), *k = q + s.Hk * s.K, *g = q + s.channels(), *beta = g + s.Hv * s.G;
    // One direction again and again, but for every eighth token.
    const float length = s.norm == QkNorm::none ? kShort[p % 8] / std::sqrt(static_cast<float>(s.K)) : kLong[p % 8];
    for (int64_t i = 0; i < s.Hk * s.K && p % 8 != 7; i++) k[i] = length * replay::uniform(seed, 6, b, i);
    for (int64_t i = 0; i < s.Hk * s.K && p % 8 == 4; i++) q[i] = 0;
    for (int64_t i = 0; i < s.Hv * s.G; i++) g[i] = kDecay[(p + i) % 6];
    for (int64_t i = 0; i < s.Hv; i++) beta[i] = kBeta[(p / 2 + i) % 4];
  }

  Shape s_;
  replay::Parameters weights_;
  replay::Buffer A_log_, dt_bias_;
  replay::Matrix qkv_, g_, beta_, out_;
  std::vector<float> values_;  // [count, width()]: q, k, v as stored, g and beta as used
  std::array<std::vector<std::byte>, 3> copies_;
  RelativeError error_;
};

// Random elements of a dtype, small enough for a state.
inline void fill_state(std::span<std::byte> region, DType t, uint64_t seed, uint64_t what) {
  const auto count = static_cast<int64_t>(region.size() / size_of(t));
  for (int64_t i = 0; i < count; i++) store_from_float(region.data(), t, i, replay::uniform(seed, 7, what, i));
}

}  // namespace deltaring::op_test
