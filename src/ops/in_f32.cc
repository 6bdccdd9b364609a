#include "ops/in_f32.h"

#include <optional>
#include <vector>

namespace deltaring {

namespace {

// A dense f32 stand-in for a view, in memory of its own.
template <int N>
class Floats {
 public:
  explicit Floats(const View<N>& like) {
    int64_t count = 1;
    for (const int64_t size : like.shape) count *= size;
    values_.resize(count);
    view_ = dense<N>(values_.data(), DType::f32, like.shape);
  }
  const View<N>& view() const { return view_; }

 private:
  std::vector<float> values_;
  View<N> view_;
};

// visit(innermost rows of both) for two views of one shape.
void each_row(const View<1>& a, const View<1>& b, const auto& visit) { visit(a, b); }
template <int N>
void each_row(const View<N>& a, const View<N>& b, const auto& visit) {
  for (int64_t i = 0; i < a.shape[0]; i++) each_row(a[i], b[i], visit);
}

template <int N>
Floats<N> widened(const View<N>& from) {
  Floats<N> to(from);
  each_row(from, to.view(),
           [](const View<1>& x, const View<1>& y) { load_floats(x.data, x.dtype, 0, x.shape[0], y.f32()); });
  return to;
}

template <class Args>
void compute_in_f32(const Args& args, GatesOp gates, Stream& stream, const std::function<void(const Args&)>& compute) {
  const bool tokens = args.q.dtype != DType::f32, out = args.out.dtype != DType::f32;
  if (!tokens && !out && !args.gates) return compute(args);
  Args wide = args;
  std::vector<Floats<3>> kept;
  const auto widen = [&kept](View<3>& view) { view = kept.emplace_back(widened(view)).view(); };
  kept.reserve(6);
  if (tokens) widen(wide.q), widen(wide.k), widen(wide.v);
  std::optional<Floats<2>> b, beta;
  if (args.gates) {
    b.emplace(widened(args.beta)), beta.emplace(args.beta);
    widen(wide.g);
    const View<3> a = wide.g, g = kept.emplace_back(a).view();
    gates({.a = a,
           .b = b->view(),
           .A_log = args.gates.A_log,
           .dt_bias = args.gates.dt_bias,
           .g = g,
           .beta = beta->view()},
          stream);
    wide.g = g, wide.beta = beta->view(), wide.gates = {};
  }
  if (out) wide.out = kept.emplace_back(args.out).view();
  compute(wide);
  if (!out) return;
  each_row(wide.out, args.out,
           [](const View<1>& x, const View<1>& y) { store_floats(y.data, y.dtype, 0, y.shape[0], x.f32()); });
}

}  // namespace

void in_f32(const GdnVerifyArgs& args, GatesOp gates, Stream& stream,
            const std::function<void(const GdnVerifyArgs&)>& compute) {
  compute_in_f32(args, gates, stream, compute);
}

void in_f32(const SnapshotVerifyArgs& args, GatesOp gates, Stream& stream,
            const std::function<void(const SnapshotVerifyArgs&)>& compute) {
  compute_in_f32(args, gates, stream, compute);
}

}  // namespace deltaring
