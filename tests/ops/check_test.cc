// What every op asks of its views and rows, and that the ops behind the replay ring ask it on every backend.
#include "ops/check_view.h"

#include <gtest/gtest.h>

#include <vector>

#include "backends/tables.h"
#include "ops/device.h"
#include "ops/refused.h"
#include "ops/tensor.h"

namespace deltaring {
namespace {

using testing::expect_refused;
using testing::Tensor;

constexpr float kWeights[4] = {};
constexpr int64_t kSeats = 3, Hk = 2, Hv = 4, K = 8, V = 6, R = 16, C = 5, kTaps = 4, kTokens = 3;

// Two rows of 2 and 1 tokens.
struct TwoRows {
  std::vector<int32_t> start{0, 2, 3}, seat{2, 0};
  std::vector<int64_t> first{9, 8}, folded{8, 0}, fold_to{8, 8};

  Rows rows() const {
    return {.count = 2,
            .start = start.data(),
            .seat = seat.data(),
            .first = first.data(),
            .folded = folded.data(),
            .fold_to = fold_to.data()};
  }
};

class Check : public ::testing::TestWithParam<const OpTable*> {
 protected:
  // The op as expect_refused wants it.
  template <class Args>
  auto op(void (*OpTable::*member)(const Args&, Stream&)) {
    return [this, member](const Args& args) { (GetParam()->*member)(args, *stream_); };
  }
  TwoRows two_;

 private:
  std::unique_ptr<Stream> stream_ = GetParam()->make_stream(1);
};
INSTANTIATE_TEST_SUITE_P(Backends, Check, ::testing::ValuesIn(replay::on_host(backends())),
                         [](const auto& info) { return info.param->name; });

struct GdnTensors {
  Tensor<4> checkpoint{DType::bf16, {kSeats, Hv, V, K}}, record_k{DType::bf16, {kSeats, Hk, R, K}},
      record_v{DType::bf16, {kSeats, Hv, R, V}};
  Tensor<4> record_g{DType::f32, {kSeats, Hv, R, 1}};
  Tensor<3> record_beta{DType::f32, {kSeats, Hv, R}};
  Tensor<3> q{DType::f32, {kTokens, Hk, K}}, k = q, v{DType::f32, {kTokens, Hv, V}}, out = v;
  Tensor<3> g{DType::f32, {kTokens, Hv, 1}};
  Tensor<2> beta{DType::f32, {kTokens, Hv}};

  GdnState state() const {
    return {.checkpoint = checkpoint.view(),
            .record_k = record_k.view(),
            .record_v = record_v.view(),
            .record_g = record_g.view(),
            .record_beta = record_beta.view()};
  }
  GdnVerifyArgs window(const Rows& rows) const {
    return {.rows = rows,
            .q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .g = g.view(),
            .beta = beta.view(),
            .state = state(),
            .grain = 8,
            .out = out.view()};
  }
};

// Faults of all three ops on a state.
template <class Args>
std::vector<testing::Fault<Args>> state_faults() {
  return {
      {[](auto& a) { a.state.checkpoint.data = nullptr; }, "checkpoint [seats, Hv, V, K] is null"},
      {[](auto& a) { a.state.record_k.data = nullptr; }, "record_k [seats, Hk, R, K] is null"},
      {[](auto& a) { a.state.record_v.data = nullptr; }, "record_v [seats, Hv, R, V] is null"},
      {[](auto& a) { a.state.record_g.data = nullptr; }, "record_g [seats, Hv, R, G] is null"},
      {[](auto& a) { a.state.record_beta.data = nullptr; }, "record_beta [seats, Hv, R] is null"},
      {[](auto& a) { a.state.record_k.shape[3] = 7; }, "record_k [seats, Hk, R, K] has 7 in K, want 8"},
      {[](auto& a) { a.state.record_v.shape[2] = 8; }, "record_v [seats, Hv, R, V] has 8 in R, want 16"},
      {[](auto& a) { a.state.record_v.dtype = DType::f32; }, "record_v [seats, Hv, R, V] is float32, want bfloat16"},
      {[](auto& a) { a.state.record_g.dtype = DType::f16; }, "record_g [seats, Hv, R, G] is float16, want float32"},
      {[](auto& a) { a.state.record_beta.stride[2] = 2; }, "record_beta [seats, Hv, R] has stride 2 in R, want 1"},
      {[](auto& a) { a.state.checkpoint.stride[0] = 8; }, "checkpoint [seats, Hv, V, K] has stride"},
      {[](auto& a) { a.state.record_k.shape[1] = 3, a.state.record_k.stride[0] = 3 * R * K; },
       "Hv = 4 is no multiple of Hk = 3"},
      {[](auto& a) { a.state.record_k.shape[1] = 0; }, "Hv = 4 is no multiple of Hk = 0"},
      {[](auto& a) { a.state.record_k.shape[2] = -1; }, "record_k [seats, Hk, R, K] has -1 in R, want >= 0"},
      {[](auto& a) {
         for (View<4>* x : {&a.state.record_k, &a.state.record_v, &a.state.record_g}) x->shape[2] = 0;
         a.state.record_beta.shape[2] = 0;
       },
       "record_k [seats, Hk, R, K] has 0 in R, want >= 1"},
      {[](auto& a) { a.grain = -1; }, "grain is -1"},
      {[](auto& a) { a.grain = 4; }, "grain is 4, want 8, 16 or 0"},
      {[](auto& a) {
         a.state.record_g.shape[3] = 2, a.state.record_g.stride = {Hv * R * 2, R * 2, 2, 1};
       },
       "2 gate channels a head, want 1 or K = 8"},
      {[](auto& a) { a.rows.count = -1; }, "rows.count is -1"},
      {[](auto& a) { a.rows.seat = nullptr; }, "rows of 2 need seat"},
      {[](auto& a) { a.rows.first = nullptr; }, "first"},
      {[](auto& a) { a.rows.folded = nullptr; }, "folded and fold_to"},
      {[](auto& a) { a.rows.fold_to = nullptr; }, "folded and fold_to"},
      {[](auto& a) {
         static const int32_t seat[] = {2, 3};
         a.rows.seat = seat;
       },
       "rows.seat[1] is 3, want -1 or [0, 3)"},
      {[](auto& a) {
         static const int32_t seat[] = {-2, 0};
         a.rows.seat = seat;
       },
       "rows.seat[0] is -2, want -1 or [0, 3)"},
      {[](auto& a) {
         static const int32_t seat[] = {1, 1};
         a.rows.seat = seat;
       },
       "rows.seat holds 1 twice"},
  };
}

TEST_P(Check, WindowsOfGdn) {
  const GdnTensors t;
  std::vector<testing::Fault<GdnVerifyArgs>> faults = state_faults<GdnVerifyArgs>();
  const std::vector<testing::Fault<GdnVerifyArgs>> own = {
      {[](auto& a) { a.q.data = nullptr; }, "q [tokens, Hk, K] is null"},
      {[](auto& a) { a.k.data = nullptr; }, "k [tokens, Hk, K] is null"},
      {[](auto& a) { a.v.data = nullptr; }, "v [tokens, Hv, V] is null"},
      {[](auto& a) { a.g.data = nullptr; }, "g [tokens, Hv, G] is null"},
      {[](auto& a) { a.beta.data = nullptr; }, "beta [tokens, Hv] is null"},
      {[](auto& a) { a.out.data = nullptr; }, "out [tokens, Hv, V] is null"},
      {[](auto& a) { a.k.shape[1] = 3; }, "k [tokens, Hk, K] has 3 in Hk, want 2"},
      {[](auto& a) { a.v.dtype = DType::bf16; }, "v [tokens, Hv, V] is bfloat16, want float32"},
      {[](auto& a) { a.q.dtype = DType::f16; }, "k [tokens, Hk, K] is float32, want float16"},
      {[](auto& a) { a.g.dtype = DType::bf16; }, "g [tokens, Hv, G] is bfloat16, want float32"},
      {[](auto& a) { a.gates = {.A_log = kWeights}; }, "gates.A_log is given and gates.dt_bias [Hv, G] is null"},
      {[](auto& a) {
         a.gates = {kWeights, kWeights}, a.g.dtype = DType::bf16;
       },
       "beta [tokens, Hv] is float32, want bfloat16"},
      {[](auto& a) { a.g.shape[0] = 2; }, "g [tokens, Hv, G] has 2 in tokens, want 3"},
      {[](auto& a) { a.q.stride[2] = 2; }, "q [tokens, Hk, K] has stride 2 in K, want 1"},
      {[](auto& a) { a.out.stride[1] = 5; }, "out [tokens, Hv, V] has stride 5 in Hv, want at least 6"},
      {[](auto& a) { a.rows.count = 0; }, "rows hold 0 tokens, the views 3"},
      {[](auto& a) { a.rows.start = nullptr; }, "rows of 2 need start and first"},
  };
  faults.insert(faults.end(), own.begin(), own.end());
  expect_refused<GdnVerifyArgs>(t.window(two_.rows()), faults, op(&OpTable::gdn_verify));
  expect_refused<GdnVerifyArgs>(t.window(two_.rows()), faults, op(&OpTable::gdn_prefill));
  const std::vector<testing::Fault<GdnVerifyArgs>> named = {
      {[](auto& a) { a.k.data = nullptr; }, "gdn_verify: k [tokens, Hk, K] is null"}};
  expect_refused<GdnVerifyArgs>(t.window(two_.rows()), named, op(&OpTable::gdn_verify));
}

TEST_P(Check, FoldOfGdn) {
  const GdnTensors t;
  Rows rows = two_.rows();
  rows.start = nullptr;
  expect_refused<GdnFoldArgs>({.rows = rows, .state = t.state(), .grain = 8}, state_faults<GdnFoldArgs>(),
                              op(&OpTable::gdn_fold));
}

TEST_P(Check, GatesOfGdn) {
  const Tensor<3> a(DType::f32, {kTokens, Hv, 1}), g = a;
  const Tensor<2> b(DType::f32, {kTokens, Hv}), beta = b;
  const float weights[Hv] = {};
  expect_refused<GdnGatesArgs>(
      {.a = a.view(), .b = b.view(), .A_log = weights, .dt_bias = weights, .g = g.view(), .beta = beta.view()},
      {
          {[](auto& x) { x.a.data = nullptr; }, "gdn_gates: a [tokens, Hv, G] is null"},
          {[](auto& x) { x.b.data = nullptr; }, "gdn_gates: b [tokens, Hv] is null"},
          {[](auto& x) { x.g.data = nullptr; }, "gdn_gates: g [tokens, Hv, G] is null"},
          {[](auto& x) { x.beta.data = nullptr; }, "gdn_gates: beta [tokens, Hv] is null"},
          {[](auto& x) { x.A_log = nullptr; }, "gdn_gates: A_log [Hv] is null"},
          {[](auto& x) { x.dt_bias = nullptr; }, "gdn_gates: dt_bias [Hv, G] is null"},
          {[](auto& x) { x.b.shape[1] = 3; }, "gdn_gates: b [tokens, Hv] has 3 in Hv, want 4"},
          {[](auto& x) { x.g.dtype = DType::bf16; }, "gdn_gates: g [tokens, Hv, G] is bfloat16, want float32"},
          {[](auto& x) { x.beta.stride[0] = 3; }, "gdn_gates: beta [tokens, Hv] has stride 3 in tokens"},
      },
      op(&OpTable::gdn_gates));
}

TEST_P(Check, Conv) {
  const Tensor<2> x(DType::f32, {kTokens, C}), out = x, weight(DType::f32, {C, kTaps});
  const Tensor<3> ring(DType::f32, {kSeats, 8, C});
  expect_refused<ConvArgs>(
      {.rows = two_.rows(), .x = x.view(), .weight = weight.view(), .ring = ring.view(), .out = out.view()},
      {
          {[](auto& a) { a.x.data = nullptr; }, "conv: x [tokens, C] is null"},
          {[](auto& a) { a.weight.data = nullptr; }, "conv: weight [C, taps] is null"},
          {[](auto& a) { a.ring.data = nullptr; }, "conv: ring [seats, Rc, C] is null"},
          {[](auto& a) { a.out.data = nullptr; }, "conv: out [tokens, C] is null"},
          {[](auto& a) { a.ring.dtype = DType::bf16; }, "conv: ring [seats, Rc, C] is bfloat16, want float32"},
          {[](auto& a) { a.x.dtype = DType::f16, a.ring.dtype = DType::bf16; },
           "conv: ring [seats, Rc, C] is bfloat16, want float16"},
          {[](auto& a) { a.weight.dtype = DType::bf16; }, "conv: weight [C, taps] is bfloat16, want float32"},
          {[](auto& a) { a.weight.shape[0] = 4; }, "conv: weight [C, taps] has 4 in C, want 5"},
          {[](auto& a) { a.weight.shape[1] = 0; }, "conv: weight [C, taps] has no taps"},
          {[](auto& a) { a.ring.shape[2] = 6; }, "conv: ring [seats, Rc, C] has 6 in C, want 5"},
          {[](auto& a) { a.ring.shape[1] = 2; }, "conv: ring [seats, Rc, C] has 2 in Rc, want >= taps-1 = 3"},
          {[](auto& a) { a.ring.stride[0] = 39; },
           "conv: ring [seats, Rc, C] has stride 39 in seats, want at least 40"},
          {[](auto& a) { a.x.stride[1] = 3; }, "conv: x [tokens, C] has stride 3 in C, want 1"},
          {[](auto& a) { a.out.shape[0] = 2; }, "conv: out [tokens, C] has 2 in tokens, want 3"},
          {[](auto& a) { a.ring.shape[0] = 2; }, "rows.seat[0] is 2, want -1 or [0, 2)"},
          {[](auto& a) { a.rows.count = 0; }, "rows hold 0 tokens, the views 3"},
      },
      op(&OpTable::conv));
}

TEST_P(Check, AStepWithoutRowsNeedsNoMemory) {
  GdnTensors t;
  GdnVerifyArgs none = t.window({});
  none.q.shape[0] = none.k.shape[0] = none.v.shape[0] = none.g.shape[0] = none.beta.shape[0] = none.out.shape[0] = 0;
  none.q.data = none.k.data = none.v.data = none.g.data = none.beta.data = none.out.data = nullptr;
  EXPECT_NO_THROW(op(&OpTable::gdn_verify)(none));
  EXPECT_NO_THROW(op(&OpTable::gdn_prefill)(none));
}

TEST(CheckView, StridesMayComeInAnyOrderAndDirectionWithoutOverlap) {
  std::vector<float> x(64);
  const auto output = [&](std::array<int64_t, 3> shape, std::array<int64_t, 3> stride) {
    check_output("op", "y [a, b, c]", View<3>{x.data(), DType::f32, shape, stride}, DType::f32, shape);
  };
  EXPECT_NO_THROW(output({2, 3, 4}, {12, 4, 1}));
  EXPECT_NO_THROW(output({2, 3, 4}, {4, 8, 1}));    // b outermost
  EXPECT_NO_THROW(output({2, 3, 4}, {-12, 4, 1}));  // backwards
  EXPECT_NO_THROW(output({1, 3, 1}, {0, 1, 0}));    // strides of nothing
  EXPECT_NO_THROW(output({0, 3, 4}, {0, 0, 0}));
  for (const std::array<int64_t, 3>& stride :
       {std::array<int64_t, 3>{11, 4, 1}, {4, 7, 1}, {12, 3, 1}, {0, 4, 1}, {12, 12, 1}, {-11, 4, 1}, {1, 4, 1}}) {
    EXPECT_THROW(output({2, 3, 4}, stride), Error) << stride[0] << " " << stride[1];
  }
}

TEST(CheckView, InputsMayRepeatAndLieAnywhere) {
  const float x = 1;
  const View<2> row{const_cast<float*>(&x), DType::f32, {5, 1}, {0, 9}};
  EXPECT_NO_THROW(check_view("op", "x [a, b]", row, DType::f32, {5, 1}));
  EXPECT_NO_THROW(check_view("op", "x [a, b]", View<2>{nullptr, DType::f32, {0, 4}, {}}, DType::f32, {0, 4}));
}

}  // namespace
}  // namespace deltaring
