// The ops of the replay ring and the snapshots as walks of the generic delta rule.
#pragma once
#include "backends/cuda/rows.h"
#include "backends/cuda/stream.h"
#include "ops/snapshot.h"

namespace deltaring::cuda {

// Outputs and the checkpoint of a verify or a prefill; the records stay to be appended. The arguments are checked.
// Throws Error(unsupported) for K above kWidestK.
void recurrent_window(const char* op, const GdnVerifyArgs& args, const RowRules& rules, CudaStream& stream);
void recurrent_fold(const GdnFoldArgs& args, const RowRules& rules, CudaStream& stream);
void recurrent_snapshots(const SnapshotVerifyArgs& args, const RowRules& rules, CudaStream& stream);

}  // namespace deltaring::cuda
