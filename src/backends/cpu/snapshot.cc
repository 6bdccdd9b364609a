#include <algorithm>
#include <cstring>

#include "backends/cpu/gdn_head.h"
#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"
#include "ops/in_f32.h"

namespace deltaring::cpu {

namespace {

void advance(const SnapshotVerifyArgs& a, Stream& stream) {
  const int64_t Hv = a.v.shape[1], V = a.v.shape[2];
  pool_of(stream).parallel_for(a.rows.count * Hv, [&](int64_t task) {
    const int32_t b = static_cast<int32_t>(task / Hv), seat = a.rows.seat[b];
    const int64_t h = task % Hv, begin = a.rows.start[b], length = a.rows.length(b), key_head = h / (Hv / a.k.shape[1]);
    if (seat < 0) {
      for (int64_t i = 0; i < length; i++) std::fill_n(a.out.f32(begin + i, h), V, 0.0f);
      return;
    }
    const View<2> state = a.state[seat][h];
    GdnHead head(state, a.g.shape[2], DType::f32, a.norm, a.scale, GdnScratch::of_this_thread());
    for (int64_t i = 0; i < length; i++) {
      const int64_t token = begin + i;
      head.open(1, 0);
      head.add({.k = a.k.f32(token, key_head),
                .v = a.v.f32(token, h),
                .stored = DType::f32,
                .q = a.q.f32(token, key_head),
                .g = a.g.f32(token, h),
                .beta = *a.beta.f32(token, h),
                .out = a.out.f32(token, h)});
      if (a.snapshots) {
        head.leave(true, a.snapshots[seat][i][h]);
      } else {
        head.leave(true, i + 1 == length ? state : View<2>());
      }
    }
    head.finish({});
  });
}

}  // namespace

// Memory traffic of a row: its state in, and with snapshots one state out a token, else one in all; the window q, k, v,
// g, beta and out once.
void snapshot_verify(const SnapshotVerifyArgs& args, Stream& stream) {
  check(args);
  in_f32(args, gdn_gates, stream, [&](const SnapshotVerifyArgs& a) { advance(a, stream); });
}

// Memory traffic of a row that keeps a token: one state in, one out.
void snapshot_commit(const SnapshotCommitArgs& a, Stream& stream) {
  check(a);
  const int64_t Hv = a.state.shape[1], V = a.state.shape[2];
  const size_t bytes = static_cast<size_t>(a.state.shape[3]) * size_of(a.state.dtype);
  pool_of(stream).parallel_for(a.rows.count * Hv, [&](int64_t task) {
    const int64_t b = task / Hv, h = task % Hv;
    if (a.rows.seat[b] < 0 || a.kept[b] == 0) return;
    const View<2> from = a.snapshots[a.rows.seat[b]][a.kept[b] - 1][h], to = a.state[a.rows.seat[b]][h];
    for (int64_t v = 0; v < V; v++) std::memcpy(to[v].data, from[v].data, bytes);
  });
}

}  // namespace deltaring::cpu
