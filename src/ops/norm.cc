#include "ops/norm.h"

#include "base/error.h"

namespace deltaring {

namespace {

void check_view(const char* name, const View<3>& view, const std::array<int64_t, 3>& want) {
  check(view.dtype == DType::f32, "{} is {}, want float32", name, name_of(view.dtype));
  check(view.shape == want, "{} has shape [{}, {}, {}], want [{}, {}, {}]", name, view.shape[0], view.shape[1],
        view.shape[2], want[0], want[1], want[2]);
  if (want[0] == 0 || want[1] == 0) return;
  check(view.data != nullptr, "{} of shape [{}, {}, {}] is null", name, want[0], want[1], want[2]);
  check(view.stride[2] == 1 || want[2] == 1, "{} has stride {} in its last dimension, want 1", name, view.stride[2]);
}

void check_scale(const char* op, const float* w, float eps, const std::array<int64_t, 3>& shape) {
  check(shape[0] >= 0 && shape[1] >= 0 && shape[2] >= 1, "{}: x has shape [{}, {}, {}]; want a last dimension >= 1", op,
        shape[0], shape[1], shape[2]);
  check(w != nullptr, "{}: w [{}] is null", op, shape[2]);
  check(eps >= 0, "{}: eps is {}, want >= 0, for example 1e-6", op, eps);
}

}  // namespace

void check(const RmsNormArgs& args) {
  check_scale("rms_norm", args.w, args.eps, args.x.shape);
  check_view("rms_norm: x [rows, groups, D]", args.x, args.x.shape);
  check_view("rms_norm: out [rows, groups, D]", args.out, args.x.shape);
}

void check(const GatedRmsNormArgs& args) {
  check_scale("gated_rms_norm", args.w, args.eps, args.x.shape);
  check_view("gated_rms_norm: x [tokens, Hv, V]", args.x, args.x.shape);
  check_view("gated_rms_norm: z [tokens, Hv, V]", args.z, args.x.shape);
  check_view("gated_rms_norm: out [tokens, Hv, V]", args.out, args.x.shape);
}

}  // namespace deltaring
