#include "ops/conv.h"

#include "ops/check_view.h"

namespace deltaring {

void check(const ConvArgs& a) {
  const int64_t tokens = a.x.shape[0], C = a.x.shape[1], taps = a.weight.shape[1];
  const int64_t seats = a.ring.shape[0], Rc = a.ring.shape[1];
  check_view("conv", "x [tokens, C]", a.x, a.x.dtype, a.x.shape);
  check_strided("conv", "weight [C, taps]", a.weight, DType::f32, {C, taps});
  check_output("conv", "ring [seats, Rc, C]", a.ring, a.ring.dtype == DType::f32 ? DType::f32 : a.x.dtype,
               {seats, Rc, C});
  check_output("conv", "out [tokens, C]", a.out, a.out.dtype, {tokens, C});
  check(taps >= 1, "conv: weight [C, taps] has no taps, want >= 1");
  check(Rc >= taps - 1, "conv: ring [seats, Rc, C] has {} in Rc, want >= taps-1 = {}", Rc, taps - 1);
  check(a.rows, seats, tokens);
}

}  // namespace deltaring
