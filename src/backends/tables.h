// Backends. Nothing else names one.
#pragma once
#include <string_view>
#include <vector>

#include "ops/table.h"

namespace deltaring {

// Those of this build that can run something.
std::vector<const OpTable*> backends();

// By name: reference (double precision, the specification), cpu, and cuda in a build for it, whose table is still
// empty. Throws Error(unsupported) listing the names that exist.
const OpTable& backend(std::string_view name);

}  // namespace deltaring
