// gdn_verify, gdn_prefill, gdn_fold and snapshot_verify: what is asked of their arguments, and which kernel serves.
#include <algorithm>
#include <limits>

#include "backends/cuda/gdn/append.h"
#include "backends/cuda/gdn/recurrent/run.h"
#include "backends/cuda/gdn/verify/launch.h"
#include "backends/cuda/ops.h"
#include "backends/cuda/rows.h"

namespace deltaring::cuda {

namespace {

RowRules rules_of(RowOp op, const Rows& rows, const GdnState& state, int64_t grain, int64_t tokens) {
  return {.op = op,
          .tokens = tokens,
          .longest = rows.longest,
          .seats = state.checkpoint.shape[0],
          .R = state.record_k.shape[2],
          .grain = grain};
}

void advance(const char* op, const GdnVerifyArgs& args, RowOp kind, Stream& stream) {
  check_views(op, args);
  const RowRules rules = rules_of(kind, args.rows, args.state, args.grain, args.q.shape[0]);
  check_rows(op, args.rows, rules);
  if (args.rows.count == 0) return;
  const VerifyPlan plan = plan_verify(args, kind == RowOp::prefill, cuda_stream(stream).limits());
  const bool generic = plan.kernel == VerifyKernel::generic;
  if (generic) {
    recurrent_window(op, args, rules, cuda_stream(stream));
  } else {
    launch_verify(plan, args, cuda_stream(stream));
  }
  if (generic || !plan.appends()) append_records(op, args, rules, cuda_stream(stream));
}

}  // namespace

// Bytes of a row: its checkpoint once (written too where a fold is due), n records of Hk K + Hv V elements and
// 4 Hv (G + 1) bytes in and T out, the window q, k, v, g, beta and out once. The generic kernel reads records and
// window once for each of its blocks, V / 64 of a head.
void gdn_verify(const GdnVerifyArgs& args, Stream& stream) { advance("gdn_verify", args, RowOp::verify, stream); }

// Bytes of a row: as gdn_verify, but of its tokens only those from fold_to on are written as records. On tensor cores
// (bit_exact) the checkpoint moves with each part of 16 tokens, between blocks and the second-level cache.
void gdn_prefill(const GdnVerifyArgs& args, Stream& stream) { advance("gdn_prefill", args, RowOp::prefill, stream); }

// Bytes of a row with a fold in a layer: its checkpoint in and out, the records [folded, fold_to) once. All layers in
// one launch.
void gdn_fold(const GdnFoldArgs& args, Stream& stream) {
  GdnFoldArgs views = args;
  const StandIn seatless(0);
  views.rows = seatless.rows();
  check(views);
  RowRules rules = rules_of(RowOp::fold, args.rows, args.state, args.grain, 0);
  rules.seats /= args.layers;
  check_rows("gdn_fold", args.rows, rules);
  if (args.rows.count == 0) return;
  const VerifyPlan plan = plan_fold(args, cuda_stream(stream).limits());
  if (plan.kernel != VerifyKernel::generic) return launch_fold(plan, args, cuda_stream(stream));
  recurrent_fold(args, rules, cuda_stream(stream));
}

// Bytes of a row: its state in, and with snapshots one state out a token, else one in all; the window q, k, v, g, beta
// and out once.
void snapshot_verify(const SnapshotVerifyArgs& args, Stream& stream) {
  SnapshotVerifyArgs views = args;
  const StandIn seatless(args.q.shape[0]);
  views.rows = seatless.rows();
  check(views);
  const int64_t slots = args.snapshots ? args.snapshots.shape[1] : std::numeric_limits<int64_t>::max();
  const RowRules rules{.op = RowOp::tokens,
                       .tokens = args.q.shape[0],
                       .longest = std::min<int64_t>(args.rows.longest, slots),
                       .seats = args.state.shape[0],
                       .grain = 1};  // the state is rounded behind every token
  check_rows("snapshot_verify", args.rows, rules);
  if (args.rows.count > 0) recurrent_snapshots(args, rules, cuda_stream(stream));
}

}  // namespace deltaring::cuda
