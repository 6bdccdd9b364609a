// Tensors and whole calls of the C ABI, for tests that see nothing but deltaring.h.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "deltaring/deltaring.h"

namespace deltaring::capi_testing {

constexpr DLDataType kF32{kDLFloat, 32, 1}, kI32{kDLInt, 32, 1}, kI64{kDLInt, 64, 1}, kBf16{kDLBfloat, 16, 1};

// A dense tensor with memory of its own, zeros at first.
class Owned {
 public:
  Owned() = default;
  Owned(std::vector<int64_t> shape, DLDataType type = kF32) : shape_(std::move(shape)) {
    int64_t count = 1;
    for (const int64_t size : shape_) count *= size;
    memory_.resize((static_cast<size_t>(count) * type.bits / 8 + 7) / 8 + 1);
    tensor_ = {.data = memory_.data(),
               .device = {kDLCPU, 0},
               .ndim = static_cast<int>(shape_.size()),
               .dtype = type,
               .shape = shape_.data(),
               .strides = nullptr,
               .byte_offset = 0};
  }
  Owned(Owned&&) = default;
  Owned& operator=(Owned&&) = default;

  DLTensor* get() { return &tensor_; }
  template <class T>
  T* at() {
    return reinterpret_cast<T*>(memory_.data());
  }
  int64_t count() const {
    int64_t count = 1;
    for (const int64_t size : shape_) count *= size;
    return count;
  }
  template <class T>
  Owned& set(std::vector<T> values) {
    std::copy(values.begin(), values.end(), at<T>());
    return *this;
  }
  Owned& normal(std::mt19937& rng, float factor = 1) {
    std::normal_distribution<float> draw;
    std::generate_n(at<float>(), count(), [&] { return factor * draw(rng); });
    return *this;
  }

 private:
  std::vector<int64_t> shape_;
  std::vector<int64_t> memory_;  // of 8-byte words, so that any element is aligned
  DLTensor tensor_{};
};

struct Stream {
  explicit Stream(const char* backend = "cpu") { deltaring_stream_create(backend, 1, &handle); }
  ~Stream() { deltaring_stream_destroy(handle); }
  deltaring_stream* handle = nullptr;
};

// Every tensor that the ops take, for two rows of 3 and 2 tokens at position 5, in seats 1 and 0.
struct World {
  static constexpr int64_t seats = 2, B = 2, tokens = 5, Hk = 1, Hv = 2, K = 8, V = 4, R = 16, C = 6, taps = 4;
  std::map<std::string, Owned> tensors;

  World() {
    std::mt19937 rng(1);
    const auto add = [&](const char* name, std::vector<int64_t> shape, DLDataType type = kF32) -> Owned& {
      return tensors[name] = Owned(std::move(shape), type);
    };
    add("rows.start", {B + 1}, kI32).set<int32_t>({0, 3, 5});
    add("rows.seat", {B}, kI32).set<int32_t>({1, 0});
    for (const char* name : {"rows.first", "rows.folded", "rows.fold_to"}) add(name, {B}, kI64);
    add("rows.order", {B}, kI32).set<int32_t>({1, 0});
    tensors["rows.first"].set<int64_t>({5, 5});
    add("kept", {B}, kI32).set<int32_t>({1, 2});
    for (const char* name : {"q", "k"}) add(name, {tokens, Hk, K}).normal(rng);
    for (const char* name : {"v", "out"}) add(name, {tokens, Hv, V}).normal(rng);
    for (const char* name : {"a", "g"}) add(name, {tokens, Hv, 1}).normal(rng, 0.1f);
    for (const char* name : {"b", "beta"}) add(name, {tokens, Hv}).normal(rng, 0.1f);
    add("A_log", {Hv}), add("dt_bias", {Hv, 1});
    add("checkpoint", {seats, Hv, V, K}), add("record_k", {seats, Hk, R, K}), add("record_v", {seats, Hv, R, V});
    add("record_g", {seats, Hv, R, 1}), add("record_beta", {seats, Hv, R});
    add("state", {seats, Hv, V, K}), add("snapshots", {seats, 3, Hv, V, K});
    add("x", {tokens, C}).normal(rng), add("weight", {C, taps}).normal(rng), add("ring", {seats, R, C});
    add("conv.out", {tokens, C});
  }

  // The descriptor that a call shall see: the tensor's own, or what a test puts in its place.
  std::map<std::string, const DLTensor*> instead;
  const DLTensor* operator[](const std::string& name) {
    const auto found = instead.find(name);
    return found == instead.end() ? tensors.at(name).get() : found->second;
  }

  deltaring_rows rows() {
    World& w = *this;
    return {w["rows.start"], w["rows.seat"], w["rows.first"], w["rows.folded"], w["rows.fold_to"], w["rows.order"], 0};
  }
  deltaring_gdn_state gdn_state() {
    World& w = *this;
    return {w["checkpoint"], w["record_k"], w["record_v"], w["record_g"], w["record_beta"]};
  }
  deltaring_gdn_verify_args window() {
    World& w = *this;
    deltaring_gdn_verify_args args{};
    args.rows = rows(), args.q = w["q"], args.k = w["k"], args.v = w["v"], args.g = w["g"], args.beta = w["beta"];
    args.A_log = w["A_log"], args.dt_bias = w["dt_bias"], args.state = gdn_state(), args.grain = 8;
    args.out = w["out"];
    return args;
  }
};

// One op called with the tensors of a world, and the names of those that it reads or writes.
struct Op {
  const char* name;
  std::vector<std::string> tensors;
  std::function<int(World&, deltaring_stream*)> call;
};

inline std::vector<Op> ops() {
  const std::vector<std::string> rows{"rows.seat", "rows.first", "rows.folded", "rows.fold_to"};
  const std::vector<std::string> window{"q", "k", "v", "g", "beta", "A_log", "dt_bias", "out"};
  const std::vector<std::string> state{"checkpoint", "record_k", "record_v", "record_g", "record_beta"};
  const auto join = [](std::vector<std::vector<std::string>> lists) {
    std::vector<std::string> all;
    for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
  };
  return {
      {"gdn_gates",
       {"a", "b", "A_log", "dt_bias", "g", "beta"},
       [](World& w, deltaring_stream* s) {
         const deltaring_gdn_gates_args args{w["a"], w["b"], w["A_log"], w["dt_bias"], w["g"], w["beta"]};
         return deltaring_gdn_gates(&args, s);
       }},
      {"gdn_verify", join({{"rows.start"}, rows, window, state}),
       [](World& w, deltaring_stream* s) {
         const deltaring_gdn_verify_args args = w.window();
         return deltaring_gdn_verify(&args, s);
       }},
      {"gdn_prefill", join({{"rows.start"}, rows, window, state}),
       [](World& w, deltaring_stream* s) {
         const deltaring_gdn_verify_args args = w.window();
         return deltaring_gdn_prefill(&args, s);
       }},
      {"gdn_fold", join({rows, state}),
       [](World& w, deltaring_stream* s) {
         const deltaring_gdn_fold_args args{w.rows(), w.gdn_state(), 8, 0, 0};
         return deltaring_gdn_fold(&args, s);
       }},
      {"commit", join({rows, {"kept"}}),
       [](World& w, deltaring_stream* s) {
         const deltaring_commit_args args{w.rows(), w["kept"], 8, 0};
         return deltaring_commit(&args, s);
       }},
      {"conv",
       {"rows.start", "rows.seat", "rows.first", "x", "weight", "ring", "conv.out"},
       [](World& w, deltaring_stream* s) {
         const deltaring_conv_args args{w.rows(), w["x"], w["weight"], w["ring"], w["conv.out"]};
         return deltaring_conv(&args, s);
       }},
      {"snapshot_verify", join({{"rows.start", "rows.seat", "rows.first"}, window, {"state", "snapshots"}}),
       [](World& w, deltaring_stream* s) {
         const deltaring_snapshot_verify_args args{w.rows(),  w["q"],     w["k"],       w["v"],     w["g"],
                                                   w["beta"], w["A_log"], w["dt_bias"], w["state"], w["snapshots"],
                                                   0,         0,          w["out"]};
         return deltaring_snapshot_verify(&args, s);
       }},
      {"snapshot_commit",
       {"rows.seat", "kept", "state", "snapshots"},
       [](World& w, deltaring_stream* s) {
         const deltaring_snapshot_commit_args args{w.rows(), w["kept"], w["state"], w["snapshots"]};
         return deltaring_snapshot_commit(&args, s);
       }},
  };
}

}  // namespace deltaring::capi_testing
