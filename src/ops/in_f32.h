// For backends that compute in f32 whatever the dtypes of a window's tokens and whoever makes its gates.
#pragma once
#include <functional>

#include "ops/gdn.h"
#include "ops/snapshot.h"

namespace deltaring {

class Stream;

// Calls compute with the same window in f32: q, k, v widened, raw gates made into g and beta by `gates`, the output
// narrowed afterwards. Arguments that are so already go through as they are. They have passed their check.
using GatesOp = void (*)(const GdnGatesArgs&, Stream&);
void in_f32(const GdnVerifyArgs& args, GatesOp gates, Stream& stream,
            const std::function<void(const GdnVerifyArgs&)>& compute);
void in_f32(const SnapshotVerifyArgs& args, GatesOp gates, Stream& stream,
            const std::function<void(const SnapshotVerifyArgs&)>& compute);

}  // namespace deltaring
