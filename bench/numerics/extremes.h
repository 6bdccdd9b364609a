// Inputs at the edge of what a gate, a beta and a key may be, and states that nothing refreshes.
#pragma once
#include "numerics/chain.h"

namespace deltaring::numerics {

enum class Keys { any, collinear, zero };
inline constexpr std::array kAllKeys = {Keys::any, Keys::collinear, Keys::zero};
const char* name_of(Keys keys);

// A value head for each pair of a log decay and a beta; the last of either means: now this, now that.
struct Extremes {
  static constexpr std::array<float, 4> kGates = {0, -1e-7f, -20, -80};
  static constexpr std::array<float, 2> kBetas = {0, 1};
  static constexpr int64_t kGateKinds = kGates.size() + 1, kBetaKinds = kBetas.size() + 1;

  // [kGateKinds, kBetaKinds] worst error over its tolerance, of any output and of the states at a few marks; NaN or
  // Inf counts as infinitely wrong.
  std::vector<double> state, out;
};

// 512 tokens through a replay scheme on the grid, from a state of normal numbers, windows of T = 8 at random
// acceptance. The tolerance follows the chain in float64: each step adds 16 float32 roundings of the norms that it
// combines, each grid point one rounding to the state's dtype, and decay takes its share of what there was. (I - beta k
// k^T adds none.)
Extremes run_extremes(const Scheme& scheme, Keys keys, const OpTable& ops, Stream& stream);

// Half-lives for the question below, each a multiple of 16.
inline constexpr std::array<int64_t, 9> kQuiet = {32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};

// What is left of a state of normal numbers after one half-life in which nothing is written (beta = 0), as a share of
// its norm, for each of kQuiet. Exactly: 0.5.
std::vector<double> left_after_half_life(const Scheme& scheme, const OpTable& ops, Stream& stream);

}  // namespace deltaring::numerics
