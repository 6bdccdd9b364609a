// From logits to the distribution a token is drawn from.
#pragma once
#include <cstdint>

#include "base/view.h"

namespace deltaring {

// temperature 0 = greedy. top_k 0, top_p 1 and min_p 0 switch their filter off.
struct SamplingParams {
  float temperature = 0;  // >= 0
  int32_t top_k = 0;      // >= 0: the k most likely tokens
  float top_p = 1;        // (0, 1]: the smallest set of most likely tokens whose mass reaches top_p
  float min_p = 0;        // [0, 1]: tokens at least min_p times as likely as the most likely
};

// Throws Error naming the field, its range and a value that works.
void check(const SamplingParams& params);

// Ids of the largest logits; ties go to the lowest id. NaN never wins; a row of NaN gives -1.
struct ArgmaxArgs {
  View<2> logits;  // [rows, vocab] f32
  int64_t valid;   // ids >= valid are padding rows of the head and are never chosen
  int32_t* out;    // [rows]
};

// out[r, id] = probability of id: temperature, then top_k, then top_p (on the renormalised rest), then min_p; f32, sums
// to 1 up to rounding. Ties at a cut keep the lowest ids. Padding ids get 0. temperature > 0. A row with a NaN or
// without a finite maximum gives all zeros.
struct ProbabilitiesArgs {
  View<2> logits;  // [rows, vocab] f32
  int64_t valid;
  const SamplingParams* params;  // [rows]
  View<2> out;                   // [rows, vocab] f32
};

void check(const ArgmaxArgs& args);
void check(const ProbabilitiesArgs& args);

}  // namespace deltaring
