// What a layer under test is made of, and the tokens that it is fed.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops/cursor.h"
#include "ops/gdn.h"

namespace deltaring::replay {

// How rejected tokens are undone: by the cursor of the replay ring, or by one state per window token.
enum class Rollback { replay, snapshot };

// The ring (T, R) is not part of it: no result may depend on that.
struct Shape {
  int64_t Hk = 1, Hv = 1, K = 16, V = 24, G = 1, taps = 4;
  DType checkpoint = DType::f32, record = DType::f32;  // snapshot keeps no records: f32
  int64_t F = 8;
  FoldPolicy policy = FoldPolicy::grid;
  QkNorm norm = QkNorm::l2;
  float scale = 0;
  Rollback rollback = Rollback::replay;
  DType tokens = DType::f32;  // of the conv's inputs, ring and outputs, so of q, k and v
  DType out = DType::f32;
  bool fused = false;  // raw gates of the tokens' dtype go into the verify; replay only

  int64_t channels() const { return 2 * Hk * K + Hv * V; }  // of the conv: q, k, v side by side
  DType gates() const { return fused ? tokens : DType::f32; }
  bool snapshots() const { return rollback == Rollback::snapshot; }
  // Snapshots are one cursor: what is folded is what is accepted.
  FoldPolicy fold_policy() const { return snapshots() ? FoldPolicy::every : policy; }
  int64_t grain() const { return fold_policy() == FoldPolicy::grid ? F : 0; }
  // Whether the states that are rounded are a function of the tokens alone.
  bool on_grid() const { return snapshots() || policy == FoldPolicy::grid; }

  std::string name() const {
    std::string s = fmt::format("Hk={} Hv={} K={} V={} G={} taps={} checkpoint={} record={}", Hk, Hv, K, V, G, taps,
                                name_of(checkpoint), name_of(record));
    if (tokens != DType::f32) s += fmt::format(" tokens={}", name_of(tokens));
    if (out != DType::f32) s += fmt::format(" out={}", name_of(out));
    if (fused) s += " fused gates";
    if (norm == QkNorm::none) s += " norm=none";
    if (scale != 0) s += fmt::format(" scale={}", scale);
    if (snapshots()) return s + " snapshots";
    return s + fmt::format(" F={} {}", F, policy == FoldPolicy::grid ? "grid" : "every");
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
  std::vector<float> weight, A_log, dt_bias;  // [C, taps], [Hv], [Hv, G]

  explicit Parameters(const Shape& s) : weight(s.channels() * s.taps), A_log(s.Hv), dt_bias(s.Hv * s.G) {
    // Keys that nobody normalises must have a length near 1 by themselves, or the state grows without bound.
    const float narrow = s.norm == QkNorm::none ? std::sqrt(11.0f / static_cast<float>(s.K * s.taps)) : 1.0f;
    for (int64_t i = 0; i < s.channels() * s.taps; i++)
      weight[i] = uniform(1, i, 0, 0) * (i < 2 * s.Hk * s.K * s.taps ? narrow : 1.0f);
    for (int64_t j = 0; j < s.Hv; j++) A_log[j] = -2.5f + 2.5f * uniform(2, j, 0, 0);
    for (int64_t j = 0; j < s.Hv * s.G; j++) dt_bias[j] = uniform(3, j, 0, 0);
  }
};

// What the token of a position holds. Everything but `truth` stands for a draft that will be rejected.
enum class Draft { truth, other, nan, nan_gate, inf, minus_inf, huge };
inline constexpr Draft kDrafts[] = {Draft::other, Draft::nan,       Draft::nan_gate,
                                    Draft::inf,   Draft::minus_inf, Draft::huge};

// A request made of numerical corners: gates and betas at their limits, different in every channel; keys that repeat,
// are collinear (SiLU is linear far from and close to zero) or zero; large and tiny inputs.
inline constexpr int64_t kCornerRequest = 1000;

// The raw gate whose log decay is g: softplus inverted.
inline float raw_gate(const Shape& s, const Parameters& w, int64_t channel, double g) {
  if (g == 0) return -200.0f;
  const double y = -g / std::exp(double{w.A_log[channel / s.G]});
  return static_cast<float>((y > 20 ? y : std::log(std::expm1(y))) - w.dt_bias[channel]);
}

inline void fill_corner(const Shape& s, const Parameters& w, int64_t position, uint64_t salt, float* x, float* a,
                        float* b) {
  constexpr double kDecay[] = {0, -1e-7, -20, -80, -0.5, -3};
  constexpr float kBeta[] = {-200.0f, 0.0f, 20.0f, 200.0f};
  constexpr float kScale[] = {1.0f, 0.0f, 1e3f, 2e3f, 1e-4f, 2e-4f}, kNarrow[] = {1.0f, 0.0f, 1e-4f, 2e-4f, 0.5f, 1.0f};
  const float* const scales = s.norm == QkNorm::none ? kNarrow : kScale;
  const float scale = scales[position / 6 % 6];
  for (int64_t j = 0; j < s.Hv; j++) b[j] = kBeta[(position / 2 + j) % 4];
  for (int64_t j = 0; j < s.Hv * s.G; j++) a[j] = raw_gate(s, w, j, kDecay[(position + j) % 6]);
  for (int64_t c = 0; c < s.channels(); c++) x[c] = scale * uniform(400, c, 0, salt);
}

// The layer's inputs for one token: x [C] of the conv, raw gates a [Hv, G] and b [Hv].
inline void fill_token(const Shape& s, const Parameters& w, int64_t request, int64_t position, Draft draft, float* x,
                       float* a, float* b) {
  const uint64_t salt = static_cast<uint64_t>(draft);
  if (draft == Draft::truth || draft == Draft::other) {
    if (request == kCornerRequest) return fill_corner(s, w, position, salt, x, a, b);
    for (int64_t c = 0; c < s.channels(); c++) x[c] = 1.5f * uniform(100 + request, position, c, salt);
    for (int64_t j = 0; j < s.Hv * s.G; j++) a[j] = 3.0f * uniform(200 + request, position, j, salt);
    for (int64_t j = 0; j < s.Hv; j++) b[j] = 4.0f * uniform(300 + request, position, j, salt);
    return;
  }
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float bad = draft == Draft::inf ? inf : draft == Draft::minus_inf ? -inf : draft == Draft::huge ? 1e38f : nan;
  std::fill_n(a, s.Hv * s.G, bad), std::fill_n(b, s.Hv, bad);
  for (int64_t c = 0; c < s.channels(); c++) x[c] = draft == Draft::nan_gate ? 0.25f : bad;
}

// The true tokens of a request.
struct Request {
  int64_t id = 0, length = 0;
  std::vector<float> x, a, b;  // [length, C], [length, Hv, G], [length, Hv]

  Request(const Shape& s, const Parameters& w, int64_t id, int64_t length)
      : id(id), length(length), x(length * s.channels()), a(length * s.Hv * s.G), b(length * s.Hv) {
    for (int64_t p = 0; p < length; p++)
      fill_token(s, w, id, p, Draft::truth, &x[p * s.channels()], &a[p * s.Hv * s.G], &b[p * s.Hv]);
    for (float& e : x) e = round_to(s.tokens, e);
    for (float& e : a) e = round_to(s.gates(), e);
    for (float& e : b) e = round_to(s.gates(), e);
  }
};

}  // namespace deltaring::replay
