// Products of whole numbers: estimates of a matrix's products for half the bytes of bf16 and less arithmetic. Which
// rows of the matrix are worth an exact product is then a question of bounds.
#pragma once
#include <cstdint>

#include "base/view.h"

namespace deltaring {

// out[m, n] = scale[n] * sum_k x[m, k] w[n, k]. The sum is exact; callers see to it that no partial sum leaves int32,
// which |x| <= (2^31 - 1) / (127 K) does. It is rounded to f32, and so is the product.
struct LinearI8Args {
  int64_t M, N, K;
  const int16_t* x;    // [M, K]
  const int8_t* w;     // [N, K]
  const float* scale;  // [N]
  View<2> out;         // [M, N] f32, N contiguous
};

void check(const LinearI8Args& args);

}  // namespace deltaring
