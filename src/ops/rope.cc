#include "ops/rope.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace deltaring {

void check(const RopeArgs& args) {
  const auto [tokens, heads, D] = args.x.shape;
  check(tokens >= 0 && heads >= 0 && D >= 1, "rope: x [tokens, heads, D] has shape [{}, {}, {}], want D >= 1", tokens,
        heads, D);
  check(args.rotary >= 0 && args.rotary % 2 == 0 && args.rotary <= D,
        "rope: rotary is {}, want an even number in [0, D = {}], for example {}", args.rotary, D, D / 2 * 2);
  check(args.theta > 0 && std::isfinite(args.theta), "rope: theta is {}, want > 0 and finite, for example 1e7",
        args.theta);
  check(args.x.dtype == DType::f32, "rope: x [tokens, heads, D] is {}, want float32", name_of(args.x.dtype));
  check(args.rows.count > 0 || tokens == 0, "rope: no rows for the {} tokens of x [tokens, heads, D]", tokens);
  check(args.rows, std::numeric_limits<int64_t>::max(), tokens);
  if (tokens == 0 || heads == 0) return;
  check(args.x.data != nullptr, "rope: x [tokens, heads, D] of shape [{}, {}, {}] is null", tokens, heads, D);
  check(args.x.stride[2] == 1 || D == 1, "rope: x [tokens, heads, D] has stride {} in its last dimension, want 1",
        args.x.stride[2]);
}

}  // namespace deltaring
