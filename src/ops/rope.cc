#include "ops/rope.h"

#include <cmath>
#include <limits>

#include "ops/check_view.h"

namespace deltaring {

void check(const RopeArgs& a) {
  const int64_t tokens = a.x.shape[0], D = a.x.shape[2];
  check_output("rope", "x [tokens, heads, D]", a.x, DType::f32, a.x.shape);
  check(a.rotary >= 0 && a.rotary % 2 == 0 && a.rotary <= D,
        "rope: rotary is {}, want an even number in [0, D = {}], for example {}", a.rotary, D, D / 2 * 2);
  check(a.frequency || (a.theta > 0 && std::isfinite(a.theta)),
        "rope: theta is {}, want > 0 and finite, for example 1e7", a.theta);
  check(a.amplitude > 0 && std::isfinite(a.amplitude), "rope: amplitude is {}, want > 0 and finite, for example 1",
        a.amplitude);
  check(a.rows, std::numeric_limits<int64_t>::max(), tokens);
}

}  // namespace deltaring
