#include "ops/linear.h"

#include "ops/check_view.h"

namespace deltaring {

void check_weight(const char* op, const char* name, const WeightMatrix& w, int64_t N, int64_t K) {
  if (w.values.dtype != DType::f8_e4m3) {
    check(!w.scales, "{}: {} is {} and has scales, which go with float8_e4m3fn alone", op, name,
          name_of(w.values.dtype));
    return check_view(op, name, w.values, w.values.dtype, {N, K});
  }
  check_shape(op, name, w.values, {N, K});
  check_contiguous(op, name, w.values);
  check(w.scales || !has_elements(w.values), "{}: {} is float8_e4m3fn without scales", op, name);
  check_strided(op, "scales [N / 128, K / 128]", w.scales, w.scales.dtype,
                {WeightMatrix::blocks(N), WeightMatrix::blocks(K)});
}

void check(const LinearArgs& a) {
  const int64_t M = a.x.shape[0], K = a.x.shape[1], N = a.w.N();
  check_view("linear", "x [M, K]", a.x, DType::f32, a.x.shape);
  check_weight("linear", "w [N, K]", a.w, N, K);
  check_output("linear", "out [M, N]", a.out, DType::f32, {M, N});
  check(K >= 1, "linear: x [M, K] has {} in K, want >= 1", K);
}

void check(const EmbeddingArgs& a) {
  const int64_t tokens = a.out.shape[0], H = a.table.shape[1];
  check_view("embedding", "table [vocab, H]", a.table, a.table.dtype, a.table.shape);
  check_output("embedding", "out [tokens, H]", a.out, DType::f32, {tokens, H});
  check(a.ids || tokens == 0, "embedding: ids [tokens] is null");
}

void check(const SwigluArgs& a) {
  check_view("swiglu", "gate [tokens, I]", a.gate, DType::f32, a.gate.shape);
  check_view("swiglu", "up [tokens, I]", a.up, DType::f32, a.gate.shape);
  check_output("swiglu", "out [tokens, I]", a.out, DType::f32, a.gate.shape);
}

}  // namespace deltaring
