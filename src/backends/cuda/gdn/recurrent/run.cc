#include "backends/cuda/gdn/recurrent/run.h"

#include <cmath>

#include "backends/cuda/aligned.h"
#include "backends/cuda/gdn/recurrent/launch.h"
#include "base/error.h"

namespace deltaring::cuda {

namespace {

void launch(const char* op, RecurrentArgs& args, bool aligned, CudaStream& stream) {
  const auto [seats, Hv, V, K] = args.checkpoint.shape;
  if (K > kWidestK)
    fail(ErrorKind::unsupported, "{}: K = {} on cuda, at most {}; --backend cpu takes any", op, K, kWidestK);
  args.plan = plan_recurrent(int64_t{args.rows.count} * args.layers, Hv, V, K, args.G, args.checkpoint.dtype, aligned);
  if (args.plan.blocks == 0) return;
  args.group = Hv / args.Hk;
  const LaunchShape shape{
      .blocks = grid_of(op, args.plan.blocks), .threads = kThreads, .early = stream.limits().capability >= 90};
  const auto kernel = args.plan.elements == 8    ? launch_recurrent<8>
                      : args.plan.elements == 16 ? launch_recurrent<16>
                                                 : launch_recurrent<32>;
  kernel(op, args, shape, stream.get());
}

float scale_of(float scale, int64_t K) { return scale != 0 ? scale : 1 / std::sqrt(static_cast<float>(K)); }

// The fields that GdnVerifyArgs and SnapshotVerifyArgs name alike.
template <class Args>
RecurrentArgs window_of(const Args& a, const RowRules& rules) {
  return {.rows = a.rows,
          .rules = rules,
          .layers = 1,
          .q = a.q,
          .k = a.k,
          .v = a.v,
          .g = a.g,
          .beta = a.beta,
          .gates = a.gates,
          .out = a.out,
          .record = DType::f32,
          .Hk = a.k.shape[1],
          .G = a.g.shape[2],
          .norm = a.norm,
          .scale = scale_of(a.scale, a.k.shape[2])};
}

void use_records(const GdnState& state, RecurrentArgs& to) {
  to.checkpoint = state.checkpoint, to.record_k = state.record_k, to.record_v = state.record_v;
  to.record_g = state.record_g, to.record_beta = state.record_beta, to.record = state.record_k.dtype;
  to.Hk = state.record_k.shape[1], to.G = state.record_g.shape[3];
}

}  // namespace

void recurrent_window(const char* op, const GdnVerifyArgs& args, const RowRules& rules, CudaStream& stream) {
  RecurrentArgs all = window_of(args, rules);
  use_records(args.state, all);
  launch(op, all, aligned_rows(args.state.checkpoint), stream);
}

void recurrent_fold(const GdnFoldArgs& args, const RowRules& rules, CudaStream& stream) {
  RecurrentArgs all{
      .rows = args.rows, .rules = rules, .layers = static_cast<int32_t>(args.layers), .norm = args.norm, .scale = 0};
  use_records(args.state, all);
  launch("gdn_fold", all, aligned_rows(args.state.checkpoint), stream);
}

void recurrent_snapshots(const SnapshotVerifyArgs& args, const RowRules& rules, CudaStream& stream) {
  RecurrentArgs all = window_of(args, rules);
  all.checkpoint = args.state, all.snapshots = args.snapshots;
  const bool aligned = aligned_rows(args.state) && (!args.snapshots || aligned_rows(args.snapshots));
  launch("snapshot_verify", all, aligned, stream);
}

}  // namespace deltaring::cuda
