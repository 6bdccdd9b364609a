// What the replay ops and the snapshot ops ask of their arguments alike.
#pragma once
#include <cstdint>

namespace deltaring {

// Throw Error(invalid_argument) starting with `op`. Hv a multiple of Hk, G one of 1 and K; a finite scale.
void check_heads(const char* op, int64_t Hk, int64_t Hv, int64_t K, int64_t G);
void check_scale(const char* op, float scale);

}  // namespace deltaring
