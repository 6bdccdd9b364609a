// A whole text through one scheme, and how far it strays.
#pragma once
#include "numerics/decoder.h"
#include "numerics/exact.h"

namespace deltaring::numerics {

struct Schedule {
  int64_t T = 1;
  bool all_accepted = true;  // or 1..T tokens a step, at random, with wrong drafts behind them
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

struct Trajectory {
  std::vector<float> out;                  // [count, Hv, V]
  std::vector<std::vector<float>> states;  // [Hv, V, K] per mark
};

// A step keeps no token beyond the next mark, so that every scheme has a state there. The marks are ascending multiples
// of 16, the last one tokens.count.
Trajectory run(const Scheme& scheme, const Schedule& schedule, const Tokens& tokens, std::span<const int64_t> marks,
               std::span<const float> initial, const OpTable& ops, Stream& stream);

// Outputs and states that differ in some bit.
int64_t differing(const Trajectory& a, const Trajectory& b);

// Relative root mean square errors per mark and head. Of outputs: over the last kSmooth tokens before the mark.
struct Errors {
  static constexpr int64_t kSmooth = 64;
  std::vector<std::vector<double>> state, out;  // [marks][Hv]
};
Errors errors(const Trajectory& trajectory, const Exact& exact, const Tokens& tokens, std::span<const int64_t> marks);

// Root mean square over the heads, each of which counts alike.
double over_heads(const std::vector<double>& errors);

}  // namespace deltaring::numerics
