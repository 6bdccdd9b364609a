#include "ops/linear_i4.h"

#include "base/error.h"
#include "ops/check_view.h"

namespace deltaring {

void check(const LinearI4Args& a) {
  check(a.M >= 0 && a.N >= 0, "linear_i4: {} rows times {}; at least 0 work", a.M, a.N);
  check(a.K >= a.kGroup && a.K % a.kGroup == 0 && a.K <= a.kMostK, "linear_i4: K is {}; multiples of {} up to {} work",
        a.K, a.kGroup, a.kMostK);
  check_view("linear_i4", "out [M, N]", a.out, DType::f32, {a.M, a.N});
  check(a.M == 0 || a.N == 0 || (a.x && a.w && a.scale && a.pairs),
        "linear_i4: x, w, scale and pairs must not be null");
}

int32_t pairs_of_i4(const uint8_t* row, int64_t K) {
  int32_t sum = 0;
  for (int64_t i = 0; i < K / 2; i++) sum += (row[i] % 16 - 8) * (row[i] / 16 + LinearI4Args::kMostX);
  return sum;
}

}  // namespace deltaring
