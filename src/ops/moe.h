// Mixture of experts: a router picks a few of E small MLPs for each token. Row-invariant: what a token chooses and gets
// depends on its own row and the weights alone, so tokens may share the reading of an expert's weights and keep their
// bits.
#pragma once
#include <cstdint>

#include "ops/linear.h"

namespace deltaring {

// p = softmax(logits[t, :]) over all E experts. A token's choices are the k largest in descending order, equal ones by
// ascending id, each with weight p, with `renormalise` divided by their sum. With a shared expert one choice more:
// expert E, weight sigmoid(shared[t]). A row with a NaN chooses k different experts, with NaN for weights.
struct MoeRouteArgs {
  View<2> logits;  // [tokens, E] f32
  View<2> shared;  // [tokens, 1] f32, or empty: no shared expert
  int64_t k;       // in [1, E]
  bool renormalise = true;
  int32_t* expert;  // [tokens, choices], choices = k, with a shared expert k + 1
  View<2> weight;   // [tokens, choices] f32
};

// One expert; they may differ in I.
struct ExpertWeights {
  WeightMatrix gate, up;  // [I, H]
  WeightMatrix down;      // [H, I]
};

// out[t, :] += sum_i weight[t, i] down_e(silu(gate_e x[t]) * up_e x[t]), e = expert[t, i]; summed in f32 in the order
// of i. Weights of an expert that no token chose are not read.
struct MoeExpertsArgs {
  View<2> x;                     // [tokens, H] f32
  const int32_t* expert;         // [tokens, choices], each in [0, count)
  View<2> weight;                // [tokens, choices] f32
  const ExpertWeights* experts;  // [count]
  int64_t count;
  View<2> rows;      // scratch [tokens * choices, H] f32
  View<2> gate, up;  // scratch [tokens * choices, the largest I] f32
  View<2> out;       // [tokens, H] f32; aliases nothing else
};

void check(const MoeRouteArgs& args);
void check(const MoeExpertsArgs& args);

}  // namespace deltaring
