// Products that do not depend on each other.
#pragma once
#include <span>

#include "ops/table.h"

namespace deltaring::cpu {

// All of them in one loop over the threads: each may be too small for it. Outputs do not overlap; the products have
// passed their check.
void multiply(std::span<const LinearArgs> products, Stream& stream);

}  // namespace deltaring::cpu
