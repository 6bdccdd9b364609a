// From logits to the distribution a token is drawn from.
#pragma once
#include <cstdint>
#include <span>

#include "base/view.h"

namespace deltaring {

// temperature 0 = greedy. top_k 0, top_p 1 and min_p 0 switch their filter off.
struct SamplingParams {
  float temperature = 0;  // >= 0
  int32_t top_k = 0;      // >= 0: the k most likely tokens
  float top_p = 1;        // (0, 1]: the smallest set of most likely tokens whose mass reaches top_p
  float min_p = 0;        // [0, 1]: tokens at least min_p times as likely as the most likely
};

// What a request's earlier tokens do to its logits. repetition 1, presence 0 and frequency 0 switch their part off.
struct Penalties {
  float repetition = 1;  // > 0: logits of ids in prompt or output are divided by it above 0, multiplied below
  float presence = 0;    // [-2, 2]: taken off ids in the output
  float frequency = 0;   // [-2, 2]: taken off ids in the output, once for each time they stand there
  friend bool operator==(const Penalties&, const Penalties&) = default;
};

// How often an id stands in a request's output; 0: in its prompt only.
struct TokenCount {
  int32_t id, output;
};

struct TokenBias {
  int32_t id;
  float bias;  // [-100, 100], added last: -100 bans an id, 100 forces it
};

// Throw Error naming the field, its range and a value that works.
void check(const SamplingParams& params);
void check(const Penalties& penalties);
void check(const TokenBias& bias, int64_t valid);

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

// out = the logits of one request's window behind penalties, then bias. Row r stands behind drafts[0, r), which count
// as output: what decoding one by one would see.
struct PenaltiesArgs {
  View<2> logits;  // [rows, vocab] f32
  int64_t valid;   // ids of counts, drafts and bias are in [0, valid)
  Penalties penalties;
  std::span<const TokenCount> counts;  // of the tokens before the drafts, no id twice
  std::span<const int32_t> drafts;     // [rows - 1]
  std::span<const TokenBias> bias;     // no id twice
  View<2> out;                         // [rows, vocab] f32
};

// Logarithms of the law at temperature 1 without filters: of one id a row, and of its likeliest ids. A row with a NaN
// or without a finite maximum gives NaN, and -1 for ids.
struct LogProbabilitiesArgs {
  View<2> logits;  // [rows, vocab] f32
  int64_t valid;
  const int32_t* ids;          // [rows] in [0, valid)
  float* out;                  // [rows]
  int32_t top = 0;             // [0, valid]
  int32_t* top_ids = nullptr;  // [rows, top] likeliest first, ties by the lowest id
  float* top_out = nullptr;    // [rows, top]
};

void check(const ArgmaxArgs& args);
void check(const ProbabilitiesArgs& args);
void check(const PenaltiesArgs& args);
void check(const LogProbabilitiesArgs& args);

}  // namespace deltaring
