// Backends. Nothing else names one.
#pragma once
#include <string_view>
#include <vector>

#include "ops/table.h"

namespace deltaring {

// Those of this build that run on this machine.
std::vector<const OpTable*> backends();

// By name: reference (double precision, the specification), cpu, and in a build for it cuda. Throws Error(unsupported)
// listing the names that exist, or saying what the machine lacks for it.
const OpTable& backend(std::string_view name);

}  // namespace deltaring
