#include "ops/contenders.h"

#include "ops/check_view.h"

namespace deltaring {

void check(const ContendersArgs& a) {
  check(!a.sum.empty(), "contenders: no estimates; one at least is needed");
  const int64_t M = a.sum[0].value.shape[0];
  for (const Estimate& e : a.sum) {
    check_view("contenders", "value [M, N]", e.value, DType::f32, {M, e.value.shape[1]});
    check(a.valid >= 0 && a.valid <= e.value.shape[1], "contenders: {} valid ids of {}; 0 to {} work", a.valid,
          e.value.shape[1], e.value.shape[1]);
    check(M == 0 || a.valid == 0 || (e.value_peaks && e.unit && e.error && e.error_peaks && e.slack),
          "contenders: value_peaks, unit, error, error_peaks and slack must not be null");
  }
  check(M == 0 || (a.least && a.ids), "contenders: least and ids must not be null");
}

}  // namespace deltaring
