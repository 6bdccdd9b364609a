// What one GDN layer sees of a long text: the inputs of every op here, and of the float64 chain.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "ops/table.h"

namespace deltaring::numerics {

struct Shape {
  int64_t Hk, Hv, K, V;
  int64_t state() const { return Hv * V * K; }
};

struct Tokens {
  Shape shape;
  int64_t count;
  std::vector<float> q, k;  // [count, Hk, K] behind conv and SiLU
  std::vector<float> v;     // [count, Hv, V]
  std::vector<float> g;     // [count, Hv] log decay
  std::vector<float> beta;  // [count, Hv]
};

// Tokens until a state without new input has halved, one figure per value head of text_like.
inline constexpr std::array<double, 6> kHalfLives = {4, 32, 256, 2048, 8192, 32768};

// Qwen3.8 heads (K = V = 128, three value heads to a key head), six of its 48: heads never meet, so these stand for
// all. Token types follow Zipf's law; a channel is its type's value plus noise through a causal conv of 4 taps and
// SiLU, so that keys repeat, share a mean direction and overlap with their neighbours'. Gates come from ops.gdn_gates,
// with A_log and dt_bias set to the half-lives above. q, k and v are rounded to `activations`. A function of its
// arguments.
Tokens text_like(int64_t count, DType activations, const OpTable& ops, Stream& stream);

// Uniform in [0, 1): draw `index` of the sequence `name`.
double uniform(uint32_t name, uint64_t index);

// Standard normal, likewise.
double normal(uint32_t name, uint64_t index);

}  // namespace deltaring::numerics
