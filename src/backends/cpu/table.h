#pragma once
#include "ops/table.h"

namespace deltaring {
const OpTable& cpu_ops();
}
