// Tensors of a state wherever their strides put them: gaps between any two rows, heads or seats, rings with the heads
// of a slot side by side. The bits are those of dense tensors.
#include <gtest/gtest.h>

#include "backends/tables.h"
#include "ops/device.h"
#include "ops/tensor.h"

namespace deltaring {
namespace {

using testing::Tensor;

constexpr int64_t kSeats = 3, Hk = 2, Hv = 4, K = 11, V = 6, R = 32, kSlots = 8, kTokens = 13;

// The pools and inputs of one layer with `gap` elements between neighbours.
struct Layer {
  int64_t gap;
  Tensor<4> checkpoint{DType::bf16, {kSeats, Hv, V, K}, gap};
  Tensor<5> snapshots{DType::bf16, {kSeats, kSlots, Hv, V, K}, gap};
  Tensor<4> record_k{DType::f16, {kSeats, Hk, R, K}, gap}, record_v{DType::f16, {kSeats, Hv, R, V}, gap};
  Tensor<4> record_g{DType::f32, {kSeats, Hv, R, K}, gap};
  Tensor<3> record_beta{DType::f32, {kSeats, Hv, R}, gap};
  Tensor<3> q{DType::f32, {kTokens, Hk, K}, gap}, k{DType::f32, {kTokens, Hk, K}, gap};
  Tensor<3> v{DType::f32, {kTokens, Hv, V}, gap}, g{DType::f32, {kTokens, Hv, K}, gap};
  Tensor<2> beta{DType::f32, {kTokens, Hv}, gap};
  Tensor<3> out{DType::f32, {kTokens, Hv, V}, gap};
  std::vector<int32_t> start{0, 8, 8, 13}, seat{2, -1, 0}, kept{7, 1, 2};
  std::vector<int64_t> first{43, 0, 8}, folded{24, 0, 8}, fold_to{40, 0, 8};

  explicit Layer(int64_t gap) : gap(gap) {
    std::mt19937 random(7);
    for (auto* t : {&checkpoint, &record_k, &record_v}) t->fill(random);
    for (auto* t : {&q, &k, &v}) t->fill(random);
    record_g.fill(random, -2, 0), g.fill(random, -2, 0), record_beta.fill(random, 0, 1), beta.fill(random, 0, 1);
    snapshots.fill(random);
  }

  Rows rows() const {
    return {.count = 3,
            .start = start.data(),
            .seat = seat.data(),
            .first = first.data(),
            .folded = folded.data(),
            .fold_to = fold_to.data()};
  }
  GdnVerifyArgs verify() const {
    return {.rows = rows(),
            .q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .g = g.view(),
            .beta = beta.view(),
            .state = {checkpoint.view(), record_k.view(), record_v.view(), record_g.view(), record_beta.view()},
            .grain = 8,
            .out = out.view()};
  }
  bool gaps_untouched() const {
    return checkpoint.gaps_untouched() && snapshots.gaps_untouched() && record_k.gaps_untouched() &&
           record_v.gaps_untouched() && record_g.gaps_untouched() && record_beta.gaps_untouched() &&
           out.gaps_untouched();
  }
};

template <int N>
void expect_same(const char* name, const Tensor<N>& a, const Tensor<N>& b) {
  std::vector<float> x, y;
  a.each([&](int64_t at) { x.push_back(load_as_float(a.view().data, a.view().dtype, at)); });
  b.each([&](int64_t at) { y.push_back(load_as_float(b.view().data, b.view().dtype, at)); });
  EXPECT_TRUE(testing::same_bits(x.data(), y.data(), static_cast<int64_t>(x.size()))) << name;
}

void expect_same(const Layer& a, const Layer& b) {
  expect_same("checkpoint", a.checkpoint, b.checkpoint), expect_same("snapshots", a.snapshots, b.snapshots);
  expect_same("record_k", a.record_k, b.record_k), expect_same("record_v", a.record_v, b.record_v);
  expect_same("record_g", a.record_g, b.record_g), expect_same("record_beta", a.record_beta, b.record_beta);
  expect_same("out", a.out, b.out);
}

class Strides : public ::testing::TestWithParam<const OpTable*> {};
INSTANTIATE_TEST_SUITE_P(Backends, Strides, ::testing::ValuesIn(backends()),
                         [](const auto& info) { return info.param->name; });

// A layer where the backend computes, until back().
struct Placed {
  replay::Visit visit;
  Rows rows;
  GdnVerifyArgs verify;
  View<5> snapshots;

  Placed(const replay::Device& device, const Layer& l) : Placed(device, l, l.verify()) {}
  Placed(const replay::Device& device, const Layer& l, GdnVerifyArgs args) : visit(device), rows(args.rows) {
    rows.longest = 8;
    rows.start = visit(l.start), rows.seat = visit(l.seat);
    rows.first = visit(l.first), rows.folded = visit(l.folded), rows.fold_to = visit(l.fold_to);
    for (View<3>* x : {&args.q, &args.k, &args.v, &args.g, &args.out}) *x = visit(*x);
    GdnState& s = args.state;
    for (View<4>* x : {&s.checkpoint, &s.record_k, &s.record_v, &s.record_g}) *x = visit(*x);
    args.beta = visit(args.beta), s.record_beta = visit(s.record_beta), args.rows = rows;
    verify = args, snapshots = visit(l.snapshots.view());
  }
};

TEST_P(Strides, Field_C17_gaps_between_all_rows) {
  const auto stream = GetParam()->make_stream(2);
  const replay::Device device(*GetParam());
  const auto all_ops = [&](const Layer& l) {
    Placed there(device, l);
    const GdnVerifyArgs& v = there.verify;
    GetParam()->gdn_verify(v, *stream);
    GetParam()->gdn_fold({.rows = there.rows, .state = v.state, .grain = 8}, *stream);
    GdnVerifyArgs prefill = v;
    const std::vector<int64_t> fold_to{48, 0, 8};
    prefill.rows.fold_to = there.visit(fold_to);
    GetParam()->gdn_prefill(prefill, *stream);
    GetParam()->snapshot_verify({.rows = there.rows,
                                 .q = v.q,
                                 .k = v.k,
                                 .v = v.v,
                                 .g = v.g,
                                 .beta = v.beta,
                                 .state = v.state.checkpoint,
                                 .snapshots = there.snapshots,
                                 .out = v.out},
                                *stream);
    GetParam()->snapshot_commit(
        {.rows = there.rows, .kept = there.visit(l.kept), .state = v.state.checkpoint, .snapshots = there.snapshots},
        *stream);
    there.visit.back();
  };
  const Layer dense(0);
  all_ops(dense);
  for (int64_t gap : {1, 5, 16}) {
    const Layer gapped(gap);
    all_ops(gapped);
    expect_same(dense, gapped);
    EXPECT_TRUE(gapped.gaps_untouched()) << gap;
  }
}

// [seats, R, heads, width] in memory: for a view that is a permutation of two strides.
View<4> slot_major(View<4> view) {
  view.stride[1] = view.shape[3], view.stride[2] = view.shape[1] * view.shape[3];
  return view;
}

void copy(const View<4>& from, const View<4>& to) {
  for (int64_t seat = 0; seat < from.shape[0]; seat++)
    for (int64_t h = 0; h < from.shape[1]; h++)
      for (int64_t slot = 0; slot < from.shape[2]; slot++)
        for (int64_t i = 0; i < from.shape[3]; i++)
          store_from_float(to.data, to.dtype, to.offset(seat, h, slot, i),
                           load_as_float(from.data, from.dtype, from.offset(seat, h, slot, i)));
}

TEST_P(Strides, Field_C17_heads_of_a_slot_side_by_side) {
  const auto stream = GetParam()->make_stream(1);
  const replay::Device device(*GetParam());
  const Layer dense(0), back(0), turned(0);
  GdnVerifyArgs args = turned.verify();
  const GdnState from = back.verify().state;
  View<4>* rings[] = {&args.state.record_k, &args.state.record_v, &args.state.record_g};
  const View<4> plain[] = {from.record_k, from.record_v, from.record_g};
  for (int i = 0; i < 3; i++) *rings[i] = slot_major(*rings[i]), copy(plain[i], *rings[i]);
  const Placed plainly(device, dense), otherwise(device, turned, args);
  for (const Placed* there : {&plainly, &otherwise})
    GetParam()->gdn_verify(there->verify, *stream), there->visit.back();
  for (int i = 0; i < 3; i++) copy(*rings[i], plain[i]);
  expect_same("record_k", dense.record_k, back.record_k), expect_same("record_v", dense.record_v, back.record_v);
  expect_same("record_g", dense.record_g, back.record_g), expect_same("out", dense.out, turned.out);
  expect_same("record_beta", dense.record_beta, turned.record_beta);
  expect_same("checkpoint", dense.checkpoint, turned.checkpoint);
}

}  // namespace
}  // namespace deltaring
