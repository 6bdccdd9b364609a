// What the replay ops and the snapshot ops ask of their arguments alike.
#pragma once
#include "ops/check_view.h"
#include "ops/gdn.h"

namespace deltaring {

// Throw Error(invalid_argument) starting with `op`. Hv a multiple of Hk, G one of 1 and K; the pools of a layer; a
// finite scale.
void check_heads(const char* op, int64_t Hk, int64_t Hv, int64_t K, int64_t G);
void check_state(const char* op, const GdnState& state);
void check_scale(const char* op, float scale);

// The views of a window's tokens, which GdnVerifyArgs and SnapshotVerifyArgs name alike.
template <class Args>
void check_tokens(const char* op, const Args& a, int64_t Hk, int64_t K, int64_t Hv, int64_t V, int64_t G) {
  const int64_t tokens = a.q.shape[0];
  check_view(op, "q [tokens, Hk, K]", a.q, a.q.dtype, {tokens, Hk, K});
  check_view(op, "k [tokens, Hk, K]", a.k, a.q.dtype, {tokens, Hk, K});
  check_view(op, "v [tokens, Hv, V]", a.v, a.q.dtype, {tokens, Hv, V});
  const DType gates = a.gates ? a.g.dtype : DType::f32;
  check_view(op, "g [tokens, Hv, G]", a.g, gates, {tokens, Hv, G});
  check_view(op, "beta [tokens, Hv]", a.beta, gates, {tokens, Hv});
  check(!a.gates || a.gates.dt_bias, "{}: gates.A_log is given and gates.dt_bias [Hv, G] is null", op);
  check_output(op, "out [tokens, Hv, V]", a.out, a.out.dtype, {tokens, Hv, V});
  check_scale(op, a.scale);
}

}  // namespace deltaring
