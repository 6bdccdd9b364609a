// One launch of the generic delta rule, for every op that walks a state through tokens.
#pragma once
#include "backends/cuda/gdn/recurrent/config.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/rows.h"
#include "ops/gdn.h"

namespace deltaring::cuda {

struct RecurrentArgs {
  Rows rows;
  RowRules rules;  // seats of a layer
  int32_t layers;  // each row is walked in all of them
  // The window; null for a fold.
  View<3> q, k;  // [tokens, Hk, K]
  View<3> v;     // [tokens, Hv, V]
  View<3> g;     // [tokens, Hv, G], raw a with gate weights
  View<2> beta;  // [tokens, Hv], raw b with gate weights
  GateWeights gates;
  View<3> out;  // [tokens, Hv, V]
  // Where the state comes from and goes to.
  View<4> checkpoint;   // [seats, Hv, V, K]
  View<4> record_k;     // [seats, Hk, R, K]; the records null where a row begins at its state
  View<4> record_v;     // [seats, Hv, R, V]
  View<4> record_g;     // [seats, Hv, R, G]
  View<3> record_beta;  // [seats, Hv, R]
  View<5> snapshots;    // [seats, slots, Hv, V, K] or null
  DType record;         // of k and v before any use
  int64_t Hk, G;
  int64_t group;  // Hv / Hk
  QkNorm norm;
  float scale;  // of q^
  RecurrentPlan plan;
};

// Bytes of a row: its state once, out too where it is stored; its records and tokens plan.parts times, out once.
template <int kElements>
void launch_recurrent(const char* op, const RecurrentArgs& args, const LaunchShape& shape, cudaStream_t stream);

// Whether the build has code for the current device.
bool code_runs_here();

extern template void launch_recurrent<8>(const char*, const RecurrentArgs&, const LaunchShape&, cudaStream_t);
extern template void launch_recurrent<16>(const char*, const RecurrentArgs&, const LaunchShape&, cudaStream_t);
extern template void launch_recurrent<32>(const char*, const RecurrentArgs&, const LaunchShape&, cudaStream_t);

}  // namespace deltaring::cuda
