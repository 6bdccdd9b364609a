// A verify on tensor cores: plan, parameters, launch.
#pragma once
#include "backends/cuda/gdn/verify/config.h"
#include "backends/cuda/gdn/verify/params.h"
#include "backends/cuda/stream.h"
#include "ops/gdn.h"

namespace deltaring::cuda {

// The plan for arguments that have passed their check; of a verify, a prefill or a fold.
VerifyPlan plan_verify(const GdnVerifyArgs& args, bool prefill, const DeviceLimits& device);
VerifyPlan plan_fold(const GdnFoldArgs& args, const DeviceLimits& device);

// Launches what the plan names, which is not the generic kernel. Appends the records too if the plan says so.
// Bytes of a row: its checkpoint once a part (out too where a fold is due), n records and T tokens once (k and q as
// often as blocks share a key head, and v again where heads do not fit together, from the cache), out and T records
// once.
void launch_verify(const VerifyPlan& plan, const GdnVerifyArgs& args, CudaStream& stream);
void launch_fold(const VerifyPlan& plan, const GdnFoldArgs& args, CudaStream& stream);

// The kernels of a state's dtype, an instance file each.
template <DType state>
void launch_tensor(const VerifyPlan& plan, const VerifyParams& params, cudaStream_t stream);

}  // namespace deltaring::cuda
