#include "ops/snapshot.h"

#include "ops/check_gdn.h"

namespace deltaring {

namespace {

void check_snapshots(const char* op, const View<4>& state, const View<5>& snapshots) {
  const auto [seats, Hv, V, K] = state.shape;
  check_output(op, "snapshots [seats, slots, Hv, V, K]", snapshots, state.dtype, {seats, snapshots.shape[1], Hv, V, K});
}

}  // namespace

void check(const SnapshotVerifyArgs& a) {
  const char* op = "snapshot_verify";
  const auto [seats, Hv, V, K] = a.state.shape;
  const int64_t tokens = a.q.shape[0], Hk = a.q.shape[1], G = a.g.shape[2];
  check_output(op, "state [seats, Hv, V, K]", a.state, a.state.dtype, a.state.shape);
  check_heads(op, Hk, Hv, K, G);
  check_tokens(op, a, Hk, K, Hv, V, G);
  check(a.rows, seats, tokens);
  if (!a.snapshots) return;
  check_snapshots(op, a.state, a.snapshots);
  for (int32_t b = 0; b < a.rows.count; b++) {
    check(a.rows.seat[b] < 0 || a.rows.length(b) <= a.snapshots.shape[1],
          "{}: row {} of {} tokens exceeds the {} snapshots of a seat; --speculative-num-draft-tokens", op, b,
          a.rows.length(b), a.snapshots.shape[1]);
  }
}

void check(const SnapshotCommitArgs& a) {
  const char* op = "snapshot_commit";
  check_output(op, "state [seats, Hv, V, K]", a.state, a.state.dtype, a.state.shape);
  check_snapshots(op, a.state, a.snapshots);
  check_seats(a.rows, a.state.shape[0]);
  check(a.rows.count == 0 || a.kept, "{}: kept [B] is null", op);
  for (int32_t b = 0; b < a.rows.count; b++) {
    check(a.rows.seat[b] < 0 || (a.kept[b] >= 0 && a.kept[b] <= a.snapshots.shape[1]),
          "{}: kept[{}] is {}, want [0, {}]", op, b, a.kept[b], a.snapshots.shape[1]);
  }
}

}  // namespace deltaring
