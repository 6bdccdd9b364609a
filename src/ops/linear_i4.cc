#include "ops/linear_i4.h"

#include "base/error.h"
#include "ops/check_view.h"

namespace deltaring {

void check(const LinearI4Args& a) {
  check(a.M >= 0 && a.N >= 0, "linear_i4: {} rows times {}; at least 0 work", a.M, a.N);
  check(a.K >= a.kGroup && a.K % a.kGroup == 0 && a.K <= a.kMostK, "linear_i4: K is {}; multiples of {} up to {} work",
        a.K, a.kGroup, a.kMostK);
  check_view("linear_i4", "out [M, N]", a.out, DType::f32, {a.M, a.N});
  check(a.M == 0 || a.N == 0 || (a.x && a.w && a.scale), "linear_i4: x, w and scale must not be null");
}

}  // namespace deltaring
