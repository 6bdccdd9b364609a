#pragma once
#include "ops/table.h"

namespace deltaring {
const OpTable& reference_ops();
}
