#include "numerics/tokens.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/rng.h"

namespace deltaring::numerics {

namespace {

constexpr int64_t kTypes = 1024, kTaps = 4;
constexpr uint64_t kStride = 4096;  // more than the channels of a token

// Sequences of draws.
enum : uint32_t { kType, kEmbedding, kNoise, kTap, kA, kANoise, kB, kBNoise };

std::array<uint32_t, 4> bits(uint32_t name, uint64_t index) {
  return philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), name, 0}, {20260, 9});
}

// Token types with frequencies 1/1, 1/2, 1/3, ...
std::vector<int64_t> zipf(int64_t count) {
  std::vector<double> sums(kTypes);
  double sum = 0;
  for (int64_t i = 0; i < kTypes; i++) sums[i] = sum += 1.0 / static_cast<double>(i + 1);
  std::vector<int64_t> types(count);
  for (int64_t t = 0; t < count; t++)
    types[t] = std::upper_bound(sums.begin(), sums.end() - 1, uniform(kType, t) * sum) - sums.begin();
  return types;
}

// [count, channels]: SiLU of a causal conv over type value + noise, rounded to `activations`.
std::vector<float> convolved(const std::vector<int64_t>& types, int64_t channels, DType activations) {
  const auto count = static_cast<int64_t>(types.size());
  std::vector<float> x(count * channels), y(count * channels), taps(channels * kTaps), embedding(kTypes * channels);
  for (int64_t i = 0; i < kTypes * channels; i++) embedding[i] = static_cast<float>(normal(kEmbedding, i));
  for (int64_t t = 0; t < count; t++) {
    for (int64_t c = 0; c < channels; c++)
      x[t * channels + c] =
          embedding[types[t] * channels + c] + 0.5f * static_cast<float>(normal(kNoise, t * kStride + c));
  }
  for (int64_t i = 0; i < channels * kTaps; i++)
    taps[i] = static_cast<float>(normal(kTap, i)) * 0.25f + (i % kTaps == kTaps - 1 ? 0.8f : 0.0f);
  for (int64_t t = 0; t < count; t++) {
    for (int64_t c = 0; c < channels; c++) {
      float sum = 0;
      for (int64_t i = std::max<int64_t>(0, kTaps - 1 - t); i < kTaps; i++)
        sum += taps[c * kTaps + i] * x[(t + i - kTaps + 1) * channels + c];
      y[t * channels + c] = round_to(activations, sum / (1 + std::exp(-sum)));
    }
  }
  return y;
}

void set_gates(Tokens& tokens, const std::vector<int64_t>& types, const OpTable& ops, Stream& stream) {
  const int64_t Hv = tokens.shape.Hv;
  std::vector<float> a(tokens.count * Hv), b(tokens.count * Hv), A_log(Hv), dt_bias(Hv);
  for (int64_t h = 0; h < Hv; h++) {
    dt_bias[h] = static_cast<float>(-2 - std::log2(kHalfLives[h]) / 4);
    A_log[h] = static_cast<float>(std::log(std::numbers::ln2 / kHalfLives[h] / std::log1p(std::exp(dt_bias[h]))));
  }
  for (int64_t t = 0; t < tokens.count; t++) {
    for (int64_t h = 0; h < Hv; h++) {
      const uint64_t type = types[t] * kStride + h, token = t * kStride + h;
      a[t * Hv + h] = static_cast<float>(0.7 * normal(kA, type) + 0.5 * normal(kANoise, token));
      b[t * Hv + h] = static_cast<float>(1.0 * normal(kB, type) + 0.5 * normal(kBNoise, token));
    }
  }
  ops.gdn_gates({.a = dense<3>(a.data(), DType::f32, {tokens.count, Hv, 1}),
                 .b = dense<2>(b.data(), DType::f32, {tokens.count, Hv}),
                 .A_log = A_log.data(),
                 .dt_bias = dt_bias.data(),
                 .g = dense<3>(tokens.g.data(), DType::f32, {tokens.count, Hv, 1}),
                 .beta = dense<2>(tokens.beta.data(), DType::f32, {tokens.count, Hv})},
                stream);
}

}  // namespace

double uniform(uint32_t name, uint64_t index) {
  const auto b = bits(name, index);
  return static_cast<double>((uint64_t{b[0]} << 32 | b[1]) >> 11) * 0x1p-53;
}

double normal(uint32_t name, uint64_t index) {
  const auto b = bits(name, index);
  const double radius = std::sqrt(-2 * std::log((b[0] + 1.0) * 0x1p-32));
  return radius * std::cos(2 * std::numbers::pi * b[1] * 0x1p-32);
}

Tokens text_like(int64_t count, DType activations, const OpTable& ops, Stream& stream) {
  const Shape s{.Hk = 2, .Hv = kHalfLives.size(), .K = 128, .V = 128};
  const int64_t keys = s.Hk * s.K, values = s.Hv * s.V, channels = 2 * keys + values;
  Tokens tokens{s, count, {}, {}, {}, std::vector<float>(count * s.Hv), std::vector<float>(count * s.Hv)};
  const std::vector<int64_t> types = zipf(count);
  const std::vector<float> x = convolved(types, channels, activations);
  for (int64_t t = 0; t < count; t++) {
    const auto row = x.begin() + t * channels;
    tokens.q.insert(tokens.q.end(), row, row + keys);
    tokens.k.insert(tokens.k.end(), row + keys, row + 2 * keys);
    tokens.v.insert(tokens.v.end(), row + 2 * keys, row + channels);
  }
  set_gates(tokens, types, ops, stream);
  return tokens;
}

}  // namespace deltaring::numerics
