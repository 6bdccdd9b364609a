#include "ops/conv.h"

#include "base/error.h"

namespace deltaring {

void check(const ConvArgs& a) {
  const int64_t tokens = a.x.shape[0], C = a.x.shape[1], taps = a.weight.shape[1];
  for (DType t : {a.x.dtype, a.weight.dtype, a.ring.dtype, a.out.dtype}) {
    check(t == DType::f32, "conv: x, weight, ring and out are float32, got {}", name_of(t));
  }
  check(taps >= 1 && a.weight.shape[0] == C, "conv: weight [C, taps] is [{}, {}], x has C = {}", a.weight.shape[0],
        taps, C);
  check(a.ring.shape[2] == C, "conv: ring [seats, Rc, C] has C = {}, x {}", a.ring.shape[2], C);
  check(a.ring.shape[1] >= taps - 1, "conv: ring of {} rows, want >= taps-1 = {}", a.ring.shape[1], taps - 1);
  check(a.out.shape == a.x.shape, "conv: out [{}, {}], want [tokens, C] = [{}, {}]", a.out.shape[0], a.out.shape[1],
        tokens, C);
  check(a.x.stride[1] == 1 && a.out.stride[1] == 1 && a.ring.stride[2] == 1,
        "conv: C must be contiguous in x, ring and out");
  check(a.rows, a.ring.shape[0], tokens);
}

}  // namespace deltaring
