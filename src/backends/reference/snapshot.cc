#include <algorithm>
#include <cstring>

#include "backends/reference/delta_rule.h"
#include "backends/reference/ops.h"
#include "ops/in_f32.h"

namespace deltaring::reference {

namespace {

void advance(const SnapshotVerifyArgs& args) {
  const Inputs inputs{args.q, args.k, args.v, args.g, args.beta, args.norm, args.scale, DType::f32};
  const int64_t Hv = args.v.shape[1], V = args.v.shape[2];
  for (int32_t b = 0; b < args.rows.count; b++) {
    const int32_t seat = args.rows.seat[b];
    for (int64_t head = 0; head < Hv; head++) {
      const int64_t begin = args.rows.start[b], length = args.rows.length(b);
      if (seat < 0) {
        for (int64_t i = 0; i < length; i++) std::fill_n(args.out.f32(begin + i, head), V, 0.0f);
        continue;
      }
      DeltaRule rule(args.state[seat][head]);
      for (int64_t i = 0; i < length; i++) {
        rule.step(token_of(inputs, head, begin + i), args.out.f32(begin + i, head));
        rule.round(args.state.dtype);
        if (args.snapshots) rule.store(args.snapshots[seat][i][head]);
      }
      if (!args.snapshots) rule.store(args.state[seat][head]);
    }
  }
}

}  // namespace

void snapshot_verify(const SnapshotVerifyArgs& args, Stream& stream) {
  check(args);
  in_f32(args, gdn_gates, stream, advance);
}

void snapshot_commit(const SnapshotCommitArgs& args, Stream&) {
  check(args);
  const auto [seats, Hv, V, K] = args.state.shape;
  for (int32_t b = 0; b < args.rows.count; b++) {
    const int32_t seat = args.rows.seat[b];
    if (seat < 0 || args.kept[b] == 0) continue;
    for (int64_t head = 0; head < Hv; head++) {
      for (int64_t v = 0; v < V; v++) {
        const View<1> from = args.snapshots[seat][args.kept[b] - 1][head][v];
        std::memcpy(args.state[seat][head][v].data, from.data, static_cast<size_t>(K) * size_of(from.dtype));
      }
    }
  }
}

}  // namespace deltaring::reference
