#include "ops/norm.h"

#include "ops/check_view.h"

namespace deltaring {

namespace {

void check_scale(const char* op, const char* name, const float* w, float eps) {
  check(w, "{}: {} is null", op, name);
  check(eps >= 0, "{}: eps is {}, want >= 0, for example 1e-6", op, eps);
}

}  // namespace

void check(const RmsNormArgs& a) {
  check_view("rms_norm", "x [rows, groups, D]", a.x, DType::f32, a.x.shape);
  check_output("rms_norm", "out [rows, groups, D]", a.out, DType::f32, a.x.shape);
  check_scale("rms_norm", "w [D]", a.w, a.eps);
}

void check(const GatedRmsNormArgs& a) {
  check_view("gated_rms_norm", "x [tokens, Hv, V]", a.x, DType::f32, a.x.shape);
  check_view("gated_rms_norm", "z [tokens, Hv, V]", a.z, DType::f32, a.x.shape);
  check_output("gated_rms_norm", "out [tokens, Hv, V]", a.out, DType::f32, a.x.shape);
  check_scale("gated_rms_norm", "w [V]", a.w, a.eps);
}

}  // namespace deltaring
