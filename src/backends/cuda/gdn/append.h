// Records of a window into the rings, in a launch of its own behind the one that read them: sibling heads share a key
// ring, and a prefill overwrites what it has replayed.
#pragma once
#include "backends/cuda/rows.h"
#include "backends/cuda/stream.h"
#include "ops/gdn.h"

namespace deltaring::cuda {

// All tokens of rows with a seat at positions >= fold_to. Bytes of a token: k, v, g, beta in, its record out.
void append_records(const char* op, const GdnVerifyArgs& args, const RowRules& rules, CudaStream& stream);

}  // namespace deltaring::cuda
