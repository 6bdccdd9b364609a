// The ops: each reads its contract's arguments from tensors and nothing more, since the ops check what they are given.
#include <algorithm>
#include <limits>

#include "capi/call.h"
#include "capi/state.h"

namespace {

using namespace deltaring;
using capi::state_of, capi::Tensors;

// The rows of a call; `tokens` of all rows together.
Rows rows_of(const deltaring_rows& rows, int64_t tokens, const Tensors& in) {
  const int32_t B = in.count("rows.seat [B]", rows.seat);
  check(rows.longest >= 0, "{}: rows.longest is {}, want the tokens of the longest row, or 0", in.op(), rows.longest);
  const int64_t widest = std::clamp<int64_t>(tokens, 0, std::numeric_limits<int32_t>::max());
  return {.count = B,
          .longest = rows.longest ? rows.longest : static_cast<int32_t>(widest),
          .start = in.int32s("rows.start [B+1]", rows.start, int64_t{B} + 1),
          .seat = in.int32s("rows.seat [B]", rows.seat, B),
          .first = in.int64s("rows.first [B]", rows.first, B),
          .folded = in.int64s("rows.folded [B]", rows.folded, B),
          .fold_to = in.int64s("rows.fold_to [B]", rows.fold_to, B),
          .order = in.int32s("rows.order [B]", rows.order, B)};
}

// Gates of the shape that the raw a has.
GateWeights weights_of(const DLTensor* A_log, const DLTensor* dt_bias, const View<3>& a, const Tensors& in) {
  check(A_log || !dt_bias, "{}: dt_bias [Hv, G] is given and A_log [Hv] is missing", in.op());
  check(!A_log || dt_bias, "{}: A_log [Hv] is given and dt_bias [Hv, G] is missing", in.op());
  return {.A_log = in.floats("A_log [Hv]", A_log, {a.shape[1]}),
          .dt_bias = in.floats("dt_bias [Hv, G]", dt_bias, {a.shape[1], a.shape[2]})};
}

QkNorm norm_of(int32_t norm, const Tensors& in) {
  check(norm == DELTARING_QK_NORM_L2 || norm == DELTARING_QK_NORM_NONE, "{}: norm is {}, want 0 (l2) or 1 (none)",
        in.op(), norm);
  return norm == DELTARING_QK_NORM_L2 ? QkNorm::l2 : QkNorm::none;
}

GdnGatesArgs gates_args(const deltaring_gdn_gates_args& c, const Tensors& in) {
  const View<3> a = in.view<3>("a [tokens, Hv, G]", c.a);
  const GateWeights weights = weights_of(c.A_log, c.dt_bias, a, in);
  return {.a = a,
          .b = in.view<2>("b [tokens, Hv]", c.b),
          .A_log = weights.A_log,
          .dt_bias = weights.dt_bias,
          .g = in.view<3>("g [tokens, Hv, G]", c.g),
          .beta = in.view<2>("beta [tokens, Hv]", c.beta)};
}

GdnVerifyArgs verify_args(const deltaring_gdn_verify_args& c, const Tensors& in) {
  const View<3> q = in.view<3>("q [tokens, Hk, K]", c.q), g = in.view<3>("g [tokens, Hv, G]", c.g);
  return {.rows = rows_of(c.rows, q.shape[0], in),
          .q = q,
          .k = in.view<3>("k [tokens, Hk, K]", c.k),
          .v = in.view<3>("v [tokens, Hv, V]", c.v),
          .g = g,
          .beta = in.view<2>("beta [tokens, Hv]", c.beta),
          .gates = weights_of(c.A_log, c.dt_bias, g, in),
          .state = state_of(c.state, in),
          .grain = c.grain,
          .norm = norm_of(c.norm, in),
          .scale = c.scale,
          .out = in.view<3>("out [tokens, Hv, V]", c.out),
          .bit_exact = c.bit_exact != 0};
}

GdnFoldArgs fold_args(const deltaring_gdn_fold_args& c, const Tensors& in) {
  return {.rows = rows_of(c.rows, 0, in),
          .state = state_of(c.state, in),
          .grain = c.grain,
          .norm = norm_of(c.norm, in),
          .layers = c.layers == 0 ? 1 : c.layers};
}

CommitArgs commit_args(const deltaring_commit_args& c, const Tensors& in) {
  const int32_t B = in.count("rows.seat [B]", c.rows.seat);
  return {.count = B,
          .seat = in.int32s("rows.seat [B]", c.rows.seat, B),
          .kept = in.int32s("kept [B]", c.kept, B),
          .first = in.int64s("rows.first [B]", c.rows.first, B),
          .folded = in.int64s("rows.folded [B]", c.rows.folded, B),
          .fold_to = in.int64s("rows.fold_to [B]", c.rows.fold_to, B),
          .order = in.int32s("rows.order [B]", c.rows.order, B),
          .F = c.F,
          .policy = capi::policy_of(c.policy)};
}

ConvArgs conv_args(const deltaring_conv_args& c, const Tensors& in) {
  const View<2> x = in.view<2>("x [tokens, C]", c.x);
  return {.rows = rows_of(c.rows, x.shape[0], in),
          .x = x,
          .weight = in.view<2>("weight [C, taps]", c.weight),
          .ring = in.view<3>("ring [seats, Rc, C]", c.ring),
          .out = in.view<2>("out [tokens, C]", c.out)};
}

// A null view stands for no snapshots at all, so one that is given has memory.
View<5> snapshots_of(const DLTensor* snapshots, const Tensors& in) {
  if (!snapshots) return {};
  const View<5> view = in.view<5>("snapshots [seats, slots, Hv, V, K]", snapshots);
  check(view.data, "{}: snapshots [seats, slots, Hv, V, K] is null", in.op());
  return view;
}

SnapshotVerifyArgs snapshot_verify_args(const deltaring_snapshot_verify_args& c, const Tensors& in) {
  const View<3> q = in.view<3>("q [tokens, Hk, K]", c.q), g = in.view<3>("g [tokens, Hv, G]", c.g);
  return {.rows = rows_of(c.rows, q.shape[0], in),
          .q = q,
          .k = in.view<3>("k [tokens, Hk, K]", c.k),
          .v = in.view<3>("v [tokens, Hv, V]", c.v),
          .g = g,
          .beta = in.view<2>("beta [tokens, Hv]", c.beta),
          .gates = weights_of(c.A_log, c.dt_bias, g, in),
          .state = in.view<4>("state [seats, Hv, V, K]", c.state),
          .snapshots = snapshots_of(c.snapshots, in),
          .norm = norm_of(c.norm, in),
          .scale = c.scale,
          .out = in.view<3>("out [tokens, Hv, V]", c.out)};
}

SnapshotCommitArgs snapshot_commit_args(const deltaring_snapshot_commit_args& c, const Tensors& in) {
  const Rows rows = rows_of(c.rows, 0, in);
  check(c.snapshots, "{}: snapshots [seats, slots, Hv, V, K] is missing", in.op());
  return {.rows = rows,
          .kept = in.int32s("kept [B]", c.kept, rows.count),
          .state = in.view<4>("state [seats, Hv, V, K]", c.state),
          .snapshots = snapshots_of(c.snapshots, in)};
}

}  // namespace

int deltaring_gdn_gates(const deltaring_gdn_gates_args* args, deltaring_stream* stream) {
  return capi::run("gdn_gates", &OpTable::gdn_gates, args, stream, gates_args);
}

int deltaring_gdn_verify(const deltaring_gdn_verify_args* args, deltaring_stream* stream) {
  return capi::run("gdn_verify", &OpTable::gdn_verify, args, stream, verify_args);
}

int deltaring_gdn_prefill(const deltaring_gdn_verify_args* args, deltaring_stream* stream) {
  return capi::run("gdn_prefill", &OpTable::gdn_prefill, args, stream, verify_args);
}

int deltaring_gdn_fold(const deltaring_gdn_fold_args* args, deltaring_stream* stream) {
  return capi::run("gdn_fold", &OpTable::gdn_fold, args, stream, fold_args);
}

int deltaring_commit(const deltaring_commit_args* args, deltaring_stream* stream) {
  return capi::run("commit", &OpTable::commit, args, stream, commit_args);
}

int deltaring_conv(const deltaring_conv_args* args, deltaring_stream* stream) {
  return capi::run("conv", &OpTable::conv, args, stream, conv_args);
}

int deltaring_snapshot_verify(const deltaring_snapshot_verify_args* args, deltaring_stream* stream) {
  return capi::run("snapshot_verify", &OpTable::snapshot_verify, args, stream, snapshot_verify_args);
}

int deltaring_snapshot_commit(const deltaring_snapshot_commit_args* args, deltaring_stream* stream) {
  return capi::run("snapshot_commit", &OpTable::snapshot_commit, args, stream, snapshot_commit_args);
}
