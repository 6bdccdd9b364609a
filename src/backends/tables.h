// The backends this build holds. Nothing else names one.
#pragma once
#include <string_view>
#include <vector>

#include "ops/table.h"

namespace deltaring {

std::vector<const OpTable*> backends();

// Throws Error(unsupported) listing the names that exist: reference (double precision, the specification), cpu.
const OpTable& backend(std::string_view name);

}  // namespace deltaring
