// Memory of the current device.
#pragma once
#include "ops/table.h"

namespace deltaring::cuda {

const Memory& device_memory();

}  // namespace deltaring::cuda
