// Rollback by state snapshots, the ordinary way: a verify leaves one whole state per window token, and the commit
// copies the one behind the last accepted token back. The baseline that the replay ring is measured against, with the
// same math (ops/gdn.h). The state is rounded to its dtype behind every token, stored or not, so that here too a window
// has the bits of single steps.
#pragma once
#include "ops/gdn.h"

namespace deltaring {

// Outputs of every token of every row from the state behind token first-1. With snapshots the state stays as it is and
// slot i of the row's seat receives the state behind its token first+i. Without (null) every token is accepted: plain
// decoding and prefill, and the state itself moves to the end of the row. No causality is broken: see ops/gdn.h.
struct SnapshotVerifyArgs {
  Rows rows;     // folded, fold_to unused
  View<3> q, k;  // [tokens, Hk, K] f32, bf16 or f16
  View<3> v;     // [tokens, Hv, V] of the dtype of q and k
  View<3> g;     // [tokens, Hv, G] f32; with gate weights raw a, f32, bf16 or f16
  View<2> beta;  // [tokens, Hv] f32; with gate weights raw b, of the dtype of a
  GateWeights gates = {};
  View<4> state;      // [seats, Hv, V, K] f32, bf16 or f16
  View<5> snapshots;  // [seats, slots, Hv, V, K] of the state's dtype, or null; slots >= the longest row with a seat
  QkNorm norm = QkNorm::l2;
  float scale = 0;  // of q^; 0 = K^-1/2
  View<3> out;      // [tokens, Hv, V] f32, bf16 or f16
};

// The state of row b's seat becomes snapshot kept[b] - 1; kept 0 leaves it. rows.start and first are unused.
struct SnapshotCommitArgs {
  Rows rows;
  const int32_t* kept;  // [B] acc, in [0, slots]
  View<4> state;        // as above
  View<5> snapshots;    // as above, not null
};

void check(const SnapshotVerifyArgs& args);
void check(const SnapshotCommitArgs& args);

}  // namespace deltaring
