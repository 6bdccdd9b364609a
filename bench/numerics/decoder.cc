#include "numerics/decoder.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"

namespace deltaring::numerics {

namespace {

// A dense tensor that owns its memory, zero at first.
template <int N>
class Tensor {
 public:
  Tensor(DType dtype, std::array<int64_t, N> shape) : dtype_(dtype), shape_(shape) {
    size_t elements = 1;
    for (const int64_t n : shape) elements *= n;
    bytes_.resize(elements * size_of(dtype));
  }
  View<N> view() { return dense<N>(bytes_.data(), dtype_, shape_); }
  // Index 0 of the first dimension becomes index 1.
  void copy_first() {
    const size_t part = bytes_.size() / shape_[0];
    std::copy_n(bytes_.begin(), part, bytes_.begin() + part);
  }
  void load(int64_t first, std::span<float> to) const {
    load_floats(bytes_.data(), dtype_, first * to.size(), to.size(), to.data());
  }
  void set(std::span<const float> x) { store_floats(bytes_.data(), dtype_, 0, x.size(), x.data()); }

 private:
  DType dtype_;
  std::array<int64_t, N> shape_;
  std::vector<std::byte> bytes_;
};

// The one row of a call.
struct Row {
  int32_t start[2], seat;
  int64_t first, folded, fold_to;
  Rows rows() const {
    return {.count = 1, .start = start, .seat = &seat, .first = &first, .folded = &folded, .fold_to = &fold_to};
  }
};

struct Inputs {
  View<3> q, k, v, g;
  View<2> beta;
  View<3> out;

  Inputs(Window& w, const Shape& s)
      : q(dense<3>(w.q.data(), DType::f32, {w.T, s.Hk, s.K})),
        k(dense<3>(w.k.data(), DType::f32, {w.T, s.Hk, s.K})),
        v(dense<3>(w.v.data(), DType::f32, {w.T, s.Hv, s.V})),
        g(dense<3>(w.g.data(), DType::f32, {w.T, s.Hv, 1})),
        beta(dense<2>(w.beta.data(), DType::f32, {w.T, s.Hv})),
        out(dense<3>(w.out.data(), DType::f32, {w.T, s.Hv, s.V})) {}
};

class Replay final : public Decoder {
 public:
  Replay(const Scheme& scheme, const Shape& s, int64_t T, std::span<const float> initial, const OpTable& ops,
         Stream& stream)
      : scheme_(scheme),
        shape_(s),
        R_(default_ring_rows(T, scheme.F, scheme.policy)),
        ops_(ops),
        stream_(stream),
        checkpoint_(scheme.state, {2, s.Hv, s.V, s.K}),
        k_(scheme.record, {2, s.Hk, R_, s.K}),
        v_(scheme.record, {2, s.Hv, R_, s.V}),
        g_(DType::f32, {2, s.Hv, R_, 1}),
        beta_(DType::f32, {2, s.Hv, R_}) {
    checkpoint_.set(initial);
  }

  void step(Window& window, int64_t acc) override {
    const int64_t fold_to = scheme_.policy == FoldPolicy::grid ? plan_fold(at_, scheme_.F, scheme_.policy) : at_.folded;
    const Row row{.start = {0, static_cast<int32_t>(window.T)},
                  .seat = 0,
                  .first = at_.pos,
                  .folded = at_.folded,
                  .fold_to = fold_to};
    const Inputs in(window, shape_);
    ops_.gdn_verify({.rows = row.rows(),
                     .q = in.q,
                     .k = in.k,
                     .v = in.v,
                     .g = in.g,
                     .beta = in.beta,
                     .state = pools(),
                     .grain = grain(),
                     .out = in.out},
                    stream_);
    at_ = commit(at_, fold_to, acc);
    if (scheme_.policy != FoldPolicy::every) return;
    fold(0);
    at_.folded = at_.pos;
  }

  void state(std::span<float> S) override {
    checkpoint_.copy_first(), k_.copy_first(), v_.copy_first(), g_.copy_first(), beta_.copy_first();
    fold(1);
    checkpoint_.load(1, S);
  }

 private:
  int64_t grain() const { return scheme_.policy == FoldPolicy::grid ? scheme_.F : 0; }
  GdnState pools() { return {checkpoint_.view(), k_.view(), v_.view(), g_.view(), beta_.view()}; }
  void fold(int32_t seat) {
    const Row row{.start = {0, 0}, .seat = seat, .first = at_.pos, .folded = at_.folded, .fold_to = at_.pos};
    ops_.gdn_fold({.rows = row.rows(), .state = pools(), .grain = grain()}, stream_);
  }

  const Scheme scheme_;
  const Shape shape_;
  const int64_t R_;
  const OpTable& ops_;
  Stream& stream_;
  // Seat 0 decodes, seat 1 is where a copy is folded to be looked at.
  Tensor<4> checkpoint_, k_, v_, g_;
  Tensor<3> beta_;
  Cursor at_;
};

class InPlace final : public Decoder {
 public:
  InPlace(const Scheme& scheme, const Shape& s, int64_t T, std::span<const float> initial, const OpTable& ops,
          Stream& stream)
      : plain_(scheme.kind == Scheme::Kind::plain),
        shape_(s),
        ops_(ops),
        stream_(stream),
        state_(scheme.state, {1, s.Hv, s.V, s.K}),
        snapshots_(scheme.state, {1, T, s.Hv, s.V, s.K}) {
    check(!plain_ || T == 1, "plain decoding has windows of T = 1, not {}", T);
    state_.set(initial);
  }

  void step(Window& window, int64_t acc) override {
    const Row row{.start = {0, static_cast<int32_t>(window.T)}, .seat = 0, .first = pos_, .folded = 0, .fold_to = 0};
    const Inputs in(window, shape_);
    ops_.snapshot_verify({.rows = row.rows(),
                          .q = in.q,
                          .k = in.k,
                          .v = in.v,
                          .g = in.g,
                          .beta = in.beta,
                          .state = state_.view(),
                          .snapshots = plain_ ? View<5>() : snapshots_.view(),
                          .out = in.out},
                         stream_);
    pos_ += acc;
    if (plain_) return;
    const auto kept = static_cast<int32_t>(acc);
    ops_.snapshot_commit({.rows = row.rows(), .kept = &kept, .state = state_.view(), .snapshots = snapshots_.view()},
                         stream_);
  }

  void state(std::span<float> S) override { state_.load(0, S); }

 private:
  const bool plain_;
  const Shape shape_;
  const OpTable& ops_;
  Stream& stream_;
  Tensor<4> state_;
  Tensor<5> snapshots_;
  int64_t pos_ = 0;
};

}  // namespace

std::string Scheme::name() const {
  if (kind == Kind::plain) return fmt::format("plain/{}", name_of(state));
  if (kind == Kind::snapshots) return fmt::format("snapshots/{}", name_of(state));
  const std::string cadence = policy == FoldPolicy::grid ? fmt::format("grid/F:{}", F) : "every";
  return fmt::format("replay/{}/{}/record:{}", name_of(state), cadence, name_of(record));
}

Window::Window(const Shape& s, int64_t T)
    : T(T), q(T * s.Hk * s.K), k(T * s.Hk * s.K), v(T * s.Hv * s.V), g(T * s.Hv), beta(T * s.Hv), out(T * s.Hv * s.V) {}

void Window::fill(const Tokens& tokens, int64_t first, int64_t genuine) {
  for (int64_t i = 0; i < T; i++) {
    const int64_t t = i < genuine ? first + i : (31 * (first + i) + 17) % tokens.count;
    const auto copy = [&](const std::vector<float>& from, std::vector<float>& to) {
      const int64_t width = static_cast<int64_t>(to.size()) / T;
      std::copy_n(&from[t * width], width, &to[i * width]);
    };
    copy(tokens.q, q), copy(tokens.k, k), copy(tokens.v, v), copy(tokens.g, g), copy(tokens.beta, beta);
  }
}

std::unique_ptr<Decoder> make_decoder(const Scheme& scheme, const Shape& shape, int64_t T,
                                      std::span<const float> initial, const OpTable& ops, Stream& stream) {
  if (scheme.kind == Scheme::Kind::replay) return std::make_unique<Replay>(scheme, shape, T, initial, ops, stream);
  return std::make_unique<InPlace>(scheme, shape, T, initial, ops, stream);
}

}  // namespace deltaring::numerics
