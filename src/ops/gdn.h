// Gated delta rules through the replay ring. q, k, v are the outputs of conv + SiLU; DESIGN section 3 has the math:
//   g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b)                                  (f32, never rounded)
//   q^ = q / sqrt(sum q^2 + 1e-6) * scale,  k^ = k / sqrt(sum k^2 + 1e-6)
//   S <- S e^g;  d = beta (v - S k^);  S <- S + d k^T;  o = S q^
// Value head j uses key head j / (Hv/Hk). S is [V, K] per value head, K contiguous. The gate has G channels a head:
// G = 1, one decay a head (Gated DeltaNet), or G = K, one a key channel (KDA): column k of S decays by e^g[k].
//
// The exact rule: token p is computed from the checkpoint at F*floor(p/F), rounded to the checkpoint's dtype, and the
// records behind it. So whenever the running state crosses a multiple of `grain` it is rounded to the checkpoint's
// dtype, stored or not. k and v are rounded to the record dtype before any use, in the window too.
// Causality: nothing a token holds, NaN included, reaches an earlier output, a record, a checkpoint or another row.
#pragma once
#include "base/view.h"
#include "ops/rows.h"

namespace deltaring {

// What becomes of q and k before use: l2 as above, none takes them as they are (q times scale).
enum class QkNorm : uint8_t { l2, none };

// What turns raw gates a and b into g and beta; null where the gates are given as they are used.
struct GateWeights {
  const float* A_log = nullptr;    // [Hv]
  const float* dt_bias = nullptr;  // [Hv, G]
  explicit operator bool() const { return A_log != nullptr; }
};

// One layer's share of the pools; the first dimension is the seat. Slot of position p is p % R.
struct GdnState {
  View<4> checkpoint;   // [seats, Hv, V, K] f32, bf16 or f16: state after token folded-1
  View<4> record_k;     // [seats, Hk, R, K] record dtype: raw k, not normalised
  View<4> record_v;     // [seats, Hv, R, V] record dtype
  View<4> record_g;     // [seats, Hv, R, G] f32: log decay of this token alone, <= 0
  View<3> record_beta;  // [seats, Hv, R] f32
};

struct GdnGatesArgs {
  View<3> a;             // [tokens, Hv, G] f32
  View<2> b;             // [tokens, Hv] f32
  const float* A_log;    // [Hv]
  const float* dt_bias;  // [Hv, G]
  View<3> g;             // out [tokens, Hv, G] f32; softplus is linear above 20
  View<2> beta;          // out [tokens, Hv] f32
};

// Outputs of every token of every row from checkpoint + records [folded, first) + the row itself. Stores the checkpoint
// at fold_to when fold_to > folded, and records of all row tokens at positions >= fold_to. Ring slots that hold no
// record of [folded, first) or of these may be written over. Moves no cursor.
//   verify: fold_to <= first. R >= (first - folded) + length, so that no live record is overwritten.
//   prefill: every row token is accepted, so fold_to may lie inside the row: folded <= fold_to <= first + length. The
//            tail behind fold_to fits the ring, and without a fold past first so do records and row together, as in
//            verify. Same bits as verify for any split of the tokens into calls, on cuda where bit_exact asks for it.
struct GdnVerifyArgs {
  Rows rows;
  View<3> q, k;  // [tokens, Hk, K] f32, bf16 or f16
  View<3> v;     // [tokens, Hv, V] of the dtype of q and k
  View<3> g;     // [tokens, Hv, G] f32; with gate weights raw a, f32, bf16 or f16
  View<2> beta;  // [tokens, Hv] f32; with gate weights raw b, of the dtype of a
  GateWeights gates = {};
  GdnState state;
  int64_t grain;  // F; 0 off the grid (FoldPolicy::every): then the state is rounded only where it is stored
  QkNorm norm = QkNorm::l2;
  float scale = 0;         // of q^; 0 = K^-1/2
  View<3> out;             // [tokens, Hv, V] f32, bf16 or f16
  bool bit_exact = false;  // asks cuda for the exact rule in window tokens behind a grid point too; the others obey it
};

// Replays records [folded, fold_to) into the checkpoint; rows need no tokens (start may be null). Moves no cursor. To
// leave the grid (FoldPolicy::every, export to engines that keep plain states) pass grain 0. On cuda the bits are those
// of verifies whose tokens have the dtype of the records.
struct GdnFoldArgs {
  Rows rows;
  GdnState state;  // its first dimension is layers x seats, one layer behind the other
  int64_t grain;
  QkNorm norm = QkNorm::l2;
  int64_t layers = 1;  // every row is folded in each: seat s of layer l is the state's l * seats + s
};

// Layer l of such a state.
GdnState layer_of(const GdnState& state, int64_t layers, int64_t l);

// Throw Error naming the offending argument with its symbolic shape; shared by every backend.
// check_views looks at nothing behind a pointer, so that it serves arguments in any memory; the others contain it.
void check(const GdnGatesArgs& args);
void check_views(const char* op, const GdnVerifyArgs& args);
void check_verify(const GdnVerifyArgs& args);
void check_prefill(const GdnVerifyArgs& args);
void check(const GdnFoldArgs& args);

}  // namespace deltaring
