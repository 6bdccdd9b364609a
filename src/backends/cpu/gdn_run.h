// A value head's way through its tokens, as gdn_head.cc prepares and gdn-inl.h executes it.
//
// Tokens are taken in segments: those between two grid points, at most kSegment; one token off the grid. With S0 the
// state before a segment, e_i the decay of its token i (per key channel) and e_{j..i} the product of those behind j up
// to i, the recurrence of the segment in closed form is
//   D_i = beta_i (v_i - S0 (e_{..i} k_i)) - sum_{j<i} A_ij D_j      A_ij = beta_i (e_{j..i} k_j) . k_i
//   o_i = S0 (e_{..i} q_i) + sum_{j<=i} P_ij D_j                    P_ij = (e_{j..i} k_j) . q_i
//   S   = S0 e_{..} + sum_j D_j (e_{j..} k_j)^T                     behind the last token
// Everything of token i is made of tokens <= i, in an order that depends on i alone: the exact rule. S0 is only read,
// and written once a segment if tokens follow or it has to be stored.
#pragma once
#include <cstdint>
#include <span>

#include "backends/cpu/gdn_ahead.h"
#include "ops/gdn.h"

namespace deltaring::cpu {

constexpr int64_t kSegment = 16;              // the longest grain
constexpr int64_t kMostRowBlock = 32;         // rows of S that go through a run of segments together, or fewer
constexpr int64_t kMostTileRows = 8;          // of them meet a vector at a time, or fewer
constexpr int64_t kTemporary = kSegment + 2;  // vectors that preparing a segment needs

// One token as the op was given it.
struct GdnToken {
  const void *k, *v;  // [K], [V] of dtype `stored`
  DType stored;
  const float* q;  // [K], or null: a record only moves the state
  const float* g;  // [G]
  float beta;
  float* out;  // [V], or null for a record
};

// What the tokens of a head have in common.
struct GdnPlan {
  int64_t K, V, G, stride;  // stride: K rounded up to whole vectors
  DType record;             // k and v are rounded to it before use
  QkNorm norm;
  float scale;  // of q^
};

struct GdnSegment {
  int64_t count;     // m tokens
  int64_t records;   // the first of them have no output
  GdnToken* tokens;  // [m]
  float* x;          // [2 m - records, stride] k^ of all tokens, then q^ of those with output
  float* w;          // [m, stride] k^ of all tokens
  float* e;          // [stride] e_{..}
  // A decay that is one number a head multiplies what is made of the vectors. Otherwise x and w hold e_{..i} k_i,
  // e_{..i} q_i and e_{j..} k_j, and these are 1.
  float *to, *on;  // [m] e_{..i} over S0 x; e_{j..} over w
  float *A, *P;    // [m, m]
  float* v;        // [m, padded V]
  bool moves;      // the state is needed behind the segment,
  bool round;      // rounded to the dtype of `from`,
  View<2> store;   // [V, K] and stored here unless null
};

struct GdnRun {
  const GdnSegment* segments;
  int64_t count;
  int64_t stride;                   // K rounded up to whole vectors
  View<2> from;                     // [V, K] where the state comes from; its dtype is the one to round to
  bool fresh;                       // S does not hold it yet
  bool keep;                        // S is needed afterwards
  float* S;                         // [padded V, stride]
  std::span<const GdnAhead> ahead;  // what comes behind this run, soonest first
};

constexpr int64_t padded_rows(int64_t V) { return (V + kMostRowBlock - 1) / kMostRowBlock * kMostRowBlock; }

}  // namespace deltaring::cpu
