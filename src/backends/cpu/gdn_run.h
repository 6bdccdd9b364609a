// A run of tokens as one value head sees it: what gdn.cc prepares and gdn-inl.h executes.
#pragma once
#include <cstdint>

#include "base/view.h"

namespace deltaring::cpu {

struct GdnStep {
  const float* k;     // [stride] normalised, zero padded
  const float* q;     // [stride] normalised and scaled, zero padded; unused without out
  const float* v;     // [V] rounded to the record dtype
  float decay, beta;  // e^g
  float* out;         // [V] or null: a record only moves the state
  bool round, store;  // before this token the state crosses a grid point; reaches fold_to
};

struct GdnRun {
  const GdnStep* steps;
  int64_t count;
  int64_t stride;      // K rounded up to whole vectors
  bool fresh;          // S does not hold the checkpoint yet
  View<2> checkpoint;  // [V, K] of this seat and head
};

// Rows [v0, v0 + rows) of the checkpoint into S [rows, stride], zeros behind K.
void Depart(const GdnRun& run, float* S, int64_t rows, int64_t v0);

// The state rows [v0, v0 + rows) of S [rows, stride] stand on a grid point (round) or at their destination (store).
void Arrive(const GdnRun& run, bool round, bool store, float* S, int64_t rows, int64_t v0);

}  // namespace deltaring::cpu
