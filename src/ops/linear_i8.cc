#include "ops/linear_i8.h"

#include "base/error.h"
#include "ops/check_view.h"

namespace deltaring {

void check(const LinearI8Args& a) {
  check(a.M >= 0 && a.N >= 0 && a.K >= 1, "linear_i8: {} rows times {} of {} numbers; at least 0, 0 and 1 work", a.M,
        a.N, a.K);
  check(a.out.dtype == DType::f32 && a.out.shape[0] == a.M && a.out.shape[1] == a.N && a.out.stride[1] == 1,
        "linear_i8: out is [{}, {}] of {}, want [{}, {}] of float32 with the columns side by side", a.out.shape[0],
        a.out.shape[1], name_of(a.out.dtype), a.M, a.N);
  check(a.M == 0 || a.N == 0 || (a.x && a.w && a.scale && a.out), "linear_i8: x, w, scale and out must not be null");
}

}  // namespace deltaring
