// What the snapshot ops ask of their arguments, and what every op on seats refuses alike.
#include <gtest/gtest.h>

#include "backends/tables.h"
#include "ops/device.h"
#include "ops/refused.h"
#include "ops/tensor.h"

namespace deltaring {
namespace {

using testing::expect_refused;
using testing::Tensor;

constexpr int64_t kSeats = 3, Hk = 2, Hv = 4, K = 8, V = 6, kSlots = 4, kTokens = 3;

struct Tensors {
  Tensor<4> state{DType::bf16, {kSeats, Hv, V, K}};
  Tensor<5> snapshots{DType::bf16, {kSeats, kSlots, Hv, V, K}};
  Tensor<3> q{DType::f32, {kTokens, Hk, K}}, k = q, v{DType::f32, {kTokens, Hv, V}}, out = v;
  Tensor<3> g{DType::f32, {kTokens, Hv, 1}};
  Tensor<2> beta{DType::f32, {kTokens, Hv}};
  std::vector<int32_t> start{0, 2, 3}, seat{2, 0}, kept{4, 0};
  std::vector<int64_t> first{9, 8};

  Rows rows() const { return {.count = 2, .start = start.data(), .seat = seat.data(), .first = first.data()}; }
  SnapshotVerifyArgs verify() const {
    return {.rows = rows(),
            .q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .g = g.view(),
            .beta = beta.view(),
            .state = state.view(),
            .snapshots = snapshots.view(),
            .out = out.view()};
  }
  SnapshotCommitArgs commit() const {
    return {.rows = {.count = 2, .seat = seat.data()},
            .kept = kept.data(),
            .state = state.view(),
            .snapshots = snapshots.view()};
  }
};

class SnapshotCheck : public ::testing::TestWithParam<const OpTable*> {
 protected:
  template <class Args>
  auto op(void (*OpTable::*member)(const Args&, Stream&)) {
    return [this, member](const Args& args) { (GetParam()->*member)(args, *stream_); };
  }
  const Tensors t_;

 private:
  std::unique_ptr<Stream> stream_ = GetParam()->make_stream(1);
};
INSTANTIATE_TEST_SUITE_P(Backends, SnapshotCheck, ::testing::ValuesIn(replay::on_host(backends())),
                         [](const auto& info) { return info.param->name; });

TEST_P(SnapshotCheck, Verify) {
  const std::vector<testing::Fault<SnapshotVerifyArgs>> faults = {
      {[](auto& a) { a.q.data = nullptr; }, "snapshot_verify: q [tokens, Hk, K] is null"},
      {[](auto& a) { a.k.data = nullptr; }, "k [tokens, Hk, K] is null"},
      {[](auto& a) { a.v.data = nullptr; }, "v [tokens, Hv, V] is null"},
      {[](auto& a) { a.g.data = nullptr; }, "g [tokens, Hv, G] is null"},
      {[](auto& a) { a.beta.data = nullptr; }, "beta [tokens, Hv] is null"},
      {[](auto& a) { a.state.data = nullptr; }, "state [seats, Hv, V, K] is null"},
      {[](auto& a) { a.out.data = nullptr; }, "out [tokens, Hv, V] is null"},
      {[](auto& a) { a.k.shape[2] = 7; }, "k [tokens, Hk, K] has 7 in K, want 8"},
      {[](auto& a) { a.v.shape[1] = 2; }, "v [tokens, Hv, V] has 2 in Hv, want 4"},
      {[](auto& a) { a.g.shape[2] = 3; }, "3 gate channels a head, want 1 or K = 8"},
      {[](auto& a) { a.q.shape[1] = a.k.shape[1] = 3; }, "Hv = 4 is no multiple of Hk = 3"},
      {[](auto& a) { a.snapshots.shape[2] = 3; }, "snapshots [seats, slots, Hv, V, K] has 3 in Hv, want 4"},
      {[](auto& a) { a.snapshots.stride[1] = 8; }, "snapshots [seats, slots, Hv, V, K] has stride 8 in slots"},
      {[](auto& a) { a.scale = std::numeric_limits<float>::infinity(); }, "scale is inf, want a finite number"},
      {[](auto& a) { a.scale = std::numeric_limits<float>::quiet_NaN(); }, "want a finite number"},
      {[](auto& a) { a.rows.count = 0; }, "rows hold 0 tokens, the views 3"},
      {[](auto& a) { a.rows.start = nullptr; }, "rows of 2 need start and first"},
      {[](auto& a) { a.rows.first = nullptr; }, "rows of 2 need start and first"},
  };
  expect_refused<SnapshotVerifyArgs>(t_.verify(), faults, op(&OpTable::snapshot_verify));
}

TEST_P(SnapshotCheck, Commit) {
  static const int32_t below[] = {-1, 0}, above[] = {0, 5};
  const std::vector<testing::Fault<SnapshotCommitArgs>> faults = {
      {[](auto& a) { a.kept = nullptr; }, "snapshot_commit: kept [B] is null"},
      {[](auto& a) { a.kept = below; }, "kept[0] is -1, want [0, 4]"},
      {[](auto& a) { a.kept = above; }, "kept[1] is 5, want [0, 4]"},
      {[](auto& a) { a.state.data = nullptr; }, "state [seats, Hv, V, K] is null"},
      {[](auto& a) { a.snapshots.data = nullptr; }, "snapshots [seats, slots, Hv, V, K] is null"},
      {[](auto& a) { a.snapshots.shape[0] = 2; }, "snapshots [seats, slots, Hv, V, K] has 2 in seats, want 3"},
      {[](auto& a) { a.state.stride[3] = 2; }, "state [seats, Hv, V, K] has stride 2 in K, want 1"},
      {[](auto& a) { a.rows.seat = nullptr; }, "rows of 2 need seat"},
  };
  expect_refused<SnapshotCommitArgs>(t_.commit(), faults, op(&OpTable::snapshot_commit));
}

// Dtypes that no op has been told to work with are refused, never walked with another stride.
TEST_P(SnapshotCheck, Field_B5_dtypes_that_do_not_fit_are_refused) {
  expect_refused<SnapshotVerifyArgs>(
      t_.verify(),
      {{[](auto& a) { a.snapshots.dtype = DType::f32; },
        "snapshots [seats, slots, Hv, V, K] is float32, want bfloat16"},
       {[](auto& a) { a.state.dtype = DType::f16; }, "snapshots [seats, slots, Hv, V, K] is bfloat16, want float16"},
       {[](auto& a) { a.g.dtype = DType::bf16; }, "g [tokens, Hv, G] is bfloat16, want float32"},
       {[](auto& a) { a.beta.dtype = DType::bf16; }, "beta [tokens, Hv] is bfloat16, want float32"},
       {[](auto& a) { a.k.dtype = DType::bf16; }, "k [tokens, Hk, K] is bfloat16, want float32"},
       {[](auto& a) { a.q.dtype = a.k.dtype = DType::f16; }, "v [tokens, Hv, V] is float32, want float16"}},
      op(&OpTable::snapshot_verify));
  expect_refused<SnapshotCommitArgs>(t_.commit(),
                                     {{[](auto& a) { a.snapshots.dtype = DType::f32; }, "is float32, want bfloat16"}},
                                     op(&OpTable::snapshot_commit));
}

// No two rows of a launch may own the same state, -1 as often as one likes.
TEST_P(SnapshotCheck, Field_C10_no_seat_twice) {
  static const int32_t twice[] = {1, 1}, none[] = {-1, -1};
  const char* message = "rows.seat holds 1 twice";
  expect_refused<SnapshotVerifyArgs>(t_.verify(), {{[](auto& a) { a.rows.seat = twice; }, message}},
                                     op(&OpTable::snapshot_verify));
  expect_refused<SnapshotCommitArgs>(t_.commit(), {{[](auto& a) { a.rows.seat = twice; }, message}},
                                     op(&OpTable::snapshot_commit));
  SnapshotVerifyArgs verify = t_.verify();
  SnapshotCommitArgs commit = t_.commit();
  verify.rows.seat = commit.rows.seat = none;
  EXPECT_NO_THROW(op(&OpTable::snapshot_verify)(verify));
  EXPECT_NO_THROW(op(&OpTable::snapshot_commit)(commit));
}

// The widest window is what the pools have room for, and one token more is an error.
TEST_P(SnapshotCheck, Field_C15_one_token_more_than_slots) {
  for (int32_t length : {int32_t{kSlots}, int32_t{kSlots} + 1}) {
    const Tensors t;
    const int32_t start[] = {0, length}, seat[] = {1};
    const int64_t first[] = {0};
    const Tensor<3> q(DType::f32, {length, Hk, K}), v(DType::f32, {length, Hv, V}), out = v;
    const Tensor<3> g(DType::f32, {length, Hv, 1});
    const Tensor<2> beta(DType::f32, {length, Hv});
    SnapshotVerifyArgs args = t.verify();
    args.rows = {.count = 1, .start = start, .seat = seat, .first = first};
    args.q = args.k = q.view(), args.v = v.view(), args.g = g.view(), args.beta = beta.view(), args.out = out.view();
    if (length == kSlots) {
      EXPECT_NO_THROW(op(&OpTable::snapshot_verify)(args));
    } else {
      try {
        op (&OpTable::snapshot_verify)(args);
        ADD_FAILURE() << "accepted";
      } catch (const Error& e) {
        EXPECT_THAT(e.what(), ::testing::HasSubstr("row 0 of 5 tokens exceeds the 4 snapshots of a seat"));
      }
    }
  }
}

}  // namespace
}  // namespace deltaring
