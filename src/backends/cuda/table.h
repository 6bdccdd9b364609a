#pragma once
#include "ops/table.h"

namespace deltaring {
const OpTable& cuda_ops();
}
