#pragma once
#include <string>

#include "ops/table.h"

namespace deltaring {

const OpTable& cuda_ops();

// Why nothing of the table can run on this machine; empty = it can, on the current device.
std::string cuda_missing();

}  // namespace deltaring
