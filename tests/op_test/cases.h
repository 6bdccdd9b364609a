// The one table of cases: what op_test checks, times and asks backends for.
#pragma once
#include <string>
#include <vector>

#include "ops/replay_shape.h"

namespace deltaring::op_test {

using replay::Shape;

// A weight matrix: out [B T, N] = x [B T, K] w^T; of experts, N = I and K = H.
struct MatrixShape {
  int64_t N = 0, K = 0;
  DType weights = DType::f32;
};

// `count` experts, k of which a token takes, and a shared one of width `shared`.
struct ExpertShape {
  int64_t count = 0, k = 0, shared = 0;
};

struct Case {
  const char* op;        // a member of OpTable
  const char* model;     // whose head dims these are
  Shape shape;           // checkpoint is the dtype of the state, whatever undoes a token; record that of a conv ring
  int64_t B = 1;         // rows
  int64_t T = 4;         // tokens of a row, of the longest if ragged
  int64_t n = 0;         // records of a row, its tokens behind the checkpoint
  bool fold = false;     // all whole grains are folded; of snapshot_verify: no snapshots, every token is accepted
  bool ragged = false;   // rows of length 0, 1, 3, T, ... with fewer records, and one without a seat
  bool corners = false;  // gates and betas at their limits; keys that repeat, are collinear, zero, long and short
  MatrixShape matrix = {};
  ExpertShape experts = {};
  int64_t kept = 0;  // records that a fold leaves all the same, off the grid

  bool is(std::string_view name) const { return op == name; }

  // Unique, and good for --filter.
  std::string name() const {
    const Shape& s = shape;
    std::string text = fmt::format("{} {} ", op, model);
    if (matrix.N > 0 || experts.count > 0) {
      if (matrix.N > 0) text += fmt::format("N={} K={} {}", matrix.N, matrix.K, name_of(matrix.weights));
      if (experts.count > 0) text += fmt::format(" E={} k={} shared={}", experts.count, experts.k, experts.shared);
    } else if (is("gdn_gates")) {
      text += fmt::format("Hv={} G={}", s.Hv, s.G);
    } else if (is("conv")) {
      text += fmt::format("C={} taps={} {}/{}/{}", s.channels(), s.taps, name_of(s.tokens), name_of(s.record),
                          name_of(s.out));
    } else {
      text += fmt::format("Hk={} Hv={} K={} V={} G={} {}", s.Hk, s.Hv, s.K, s.V, s.G, name_of(s.checkpoint));
      if (!s.snapshots())
        text += fmt::format("/{} F={}", name_of(s.record), s.grain() ? std::to_string(s.grain()) : "none");
      if (s.tokens != DType::f32 || s.out != DType::f32)
        text += fmt::format(" {}->{}", name_of(s.tokens), name_of(s.out));
      if (s.fused) text += " fused";
      if (s.norm == QkNorm::none) text += " norm=none";
      if (s.scale != 0) text += fmt::format(" scale={}", s.scale);
    }
    text += fmt::format(" B={} T={} n={}", B, T, n);
    if (fold) text += s.snapshots() ? " plain" : " fold";
    if (kept > 0) text += fmt::format(" but {}", kept);
    if (ragged) text += " ragged";
    return text + (corners ? " corners" : "");
  }
};

namespace detail {

using enum DType;

constexpr Shape dims(int64_t Hk, int64_t Hv, int64_t K, int64_t V, int64_t G, DType state, DType record) {
  return {.Hk = Hk, .Hv = Hv, .K = K, .V = V, .G = G, .checkpoint = state, .record = record, .F = 16};
}
constexpr Shape k0_8B(DType state, DType record = bf16) { return dims(16, 16, 128, 128, 1, state, record); }
constexpr Shape k27B(DType state, DType record = bf16) { return dims(16, 48, 128, 128, 1, state, record); }
constexpr Shape kKda(DType state, DType record = bf16) { return dims(16, 16, 128, 128, 128, state, record); }
constexpr Shape kOdd(DType state, DType record = f16) { return dims(2, 6, 35, 13, 1, state, record); }
constexpr Shape kOddKda(DType state, DType record = f16) { return dims(3, 3, 13, 35, 13, state, record); }
constexpr Shape kOne = dims(1, 1, 1, 1, 1, f32, f32);
constexpr Shape kWide = dims(1, 2, 256, 64, 1, bf16, bf16), kTall = dims(2, 2, 64, 256, 64, f16, f32);

constexpr Shape grain(Shape s, int64_t F) { return s.F = F, s; }
constexpr Shape off_grid(Shape s) { return s.policy = FoldPolicy::every, s; }
constexpr Shape raw_keys(Shape s, float scale) { return s.norm = QkNorm::none, s.scale = scale, s; }
constexpr Shape scaled(Shape s, float scale) { return s.scale = scale, s; }
constexpr Shape snapshots(Shape s) { return s.rollback = replay::Rollback::snapshot, s.record = DType::f32, s; }
constexpr Shape of(DType tokens, DType out, Shape s) { return s.tokens = tokens, s.out = out, s; }
constexpr Shape fused(Shape s) { return s.fused = true, s; }
constexpr Shape taps(Shape s, int64_t taps) { return s.taps = taps, s; }

inline Case leaving(Case c, int64_t kept) { return c.kept = kept, c; }

inline std::vector<Case> verify_cases() {
  const char* op = "gdn_verify";
  return {
      {op, "0.8B", k0_8B(f32, f32), 1, 1, 0},
      {op, "0.8B", k0_8B(f32), 1, 4, 7},
      {op, "0.8B", k0_8B(bf16), 8, 4, 12},
      {op, "0.8B", k0_8B(bf16), 4, 8, 20, true},
      {op, "0.8B", grain(k0_8B(f16), 8), 4, 8, 7, false, true},
      {op, "27B", k27B(f32), 1, 4, 15},
      {op, "27B", k27B(bf16), 1, 8, 18, true},
      {op, "27B", k27B(bf16), 2, 4, 6},
      {op, "27B", k27B(bf16), 1, 16, 0},
      {op, "27B", off_grid(k27B(f32)), 1, 4, 3, true},
      {op, "kda", kKda(bf16), 1, 4, 7},
      {op, "kda", kKda(f32, f32), 2, 8, 17, true},
      {op, "odd", kOdd(bf16), 5, 7, 11, false, true},
      {op, "odd", kOdd(f16, f32), 7, 16, 29, true, true},
      {op, "odd", grain(kOdd(f32, f32), 8), 3, 32, 7},
      {op, "odd", grain(kOdd(bf16, bf16), 8), 3, 32, 25, true},
      {op, "odd", off_grid(kOdd(f16)), 3, 5, 9, true},
      {op, "odd", off_grid(kOdd(f32)), 3, 5, 9},
      {op, "odd", scaled(kOdd(f32), -0.5f), 2, 5, 9},
      {op, "odd", kOdd(f16), 3, 7, 25},
      {op, "odd", kOdd(bf16), 3, 7, 25, true},
      {op, "odd", kOdd(bf16), 2, 24, 8, false, false, true},
      {op, "odd", raw_keys(kOdd(f32), 1), 2, 24, 8, false, false, true},
      {op, "odd_kda", kOddKda(bf16), 5, 9, 19, true, true},
      {op, "odd_kda", kOddKda(f16), 2, 24, 8, false, false, true},
      {op, "odd_kda", raw_keys(kOddKda(bf16, f32), 0.25f), 2, 24, 8, false, false, true},
      {op, "0.8B", fused(of(bf16, bf16, k0_8B(bf16))), 4, 4, 7},
      {op, "0.8B", of(bf16, f32, k0_8B(f32)), 2, 16, 15, false, true},
      {op, "27B", fused(of(bf16, bf16, k27B(bf16))), 2, 8, 18, true},
      {op, "27B", of(f16, f16, k27B(f32, f16)), 1, 4, 3},
      {op, "27B", fused(of(bf16, bf16, k27B(bf16))), 6, 8, 23, true, true},
      {op, "27B", of(bf16, f32, k27B(f32)), 5, 16, 31, true, true},
      {op, "27B", fused(of(bf16, f32, grain(k27B(f16), 8))), 6, 7, 15, true, true},
      {op, "27B", of(bf16, f32, k27B(bf16)), 2, 24, 8, false, true},
      {op, "27B", of(bf16, bf16, off_grid(k27B(bf16))), 6, 8, 5, true, true},
      {op, "27B", of(bf16, f32, off_grid(k27B(f32))), 3, 7, 9},
      leaving({op, "27B", of(bf16, f32, off_grid(k27B(bf16))), 6, 5, 9, true, true}, 4),
      leaving({op, "0.8B", of(bf16, f32, off_grid(k0_8B(f32))), 3, 4, 12, true}, 3),
      {op, "27B", of(bf16, bf16, k27B(bf16)), 35, 3, 9, false, true},
      {op, "27B", of(bf16, f32, off_grid(k27B(f16))), 2, 16, 0},
      {op, "0.8B", of(bf16, f32, off_grid(k0_8B(f32))), 5, 3, 13, true, true},
      {op, "0.8B", of(bf16, f32, grain(k0_8B(bf16), 8)), 14, 3, 5, false, true, true},
      {op, "group of 8", of(bf16, f32, dims(2, 16, 128, 128, 1, bf16, bf16)), 14, 8, 14, false, true},
      {op, "kda", fused(of(bf16, bf16, kKda(bf16))), 1, 4, 9},
      {op, "odd", fused(of(f16, bf16, kOdd(f16))), 5, 9, 17, true, true},
      {op, "odd", fused(kOdd(f32, f32)), 3, 5, 9},
      {op, "odd", of(bf16, f16, kOdd(bf16, f32)), 2, 24, 8, false, false, true},
      {op, "odd_kda", fused(of(bf16, f32, kOddKda(bf16))), 4, 7, 20, true, true},
      {op, "one", fused(of(bf16, bf16, kOne)), 3, 3, 2},
      {op, "one", kOne, 2, 3, 20, true},
      {op, "wide", kWide, 2, 6, 10},
      {op, "wide", fused(of(bf16, bf16, kWide)), 2, 6, 10},
      {op, "tall", kTall, 2, 6, 18, true},
  };
}

// Prefill is verify with any fold_to up to the end; n is the tail that an earlier call left.
inline std::vector<Case> prefill_cases() {
  const char* op = "gdn_prefill";
  return {
      {op, "0.8B", k0_8B(f32), 1, 64, 0, true},
      {op, "0.8B", k0_8B(bf16), 1, 9, 5},
      {op, "27B", k27B(bf16), 1, 40, 5, true},
      {op, "kda", kKda(bf16), 1, 33, 0, true},
      {op, "odd", kOdd(bf16), 4, 70, 11, true, true},
      {op, "odd", off_grid(kOdd(f32)), 2, 50, 3, true},
      {op, "odd", grain(kOdd(f16), 8), 3, 65, 7, true, false, true},
      {op, "odd_kda", kOddKda(bf16), 4, 48, 15, true, true},
      {op, "odd_kda", raw_keys(kOddKda(f32, f32), 1), 2, 65, 7, true, false, true},
      {op, "27B", fused(of(bf16, bf16, k27B(bf16))), 1, 24, 5, true},
      {op, "odd", fused(of(f16, f16, kOdd(f32))), 4, 40, 11, true, true},
      {op, "27B", fused(of(bf16, f32, k27B(f32))), 5, 50, 11, true, true},
      {op, "full ring", of(bf16, f32, grain(dims(1, 2, 128, 128, 1, bf16, bf16), 8)), 3, 20, 15, true},
      {op, "full ring", of(bf16, f32, grain(dims(1, 2, 128, 128, 1, bf16, bf16), 8)), 3, 20, 16, true},
      {op, "odd_kda", fused(of(bf16, bf16, kOddKda(bf16))), 3, 20, 3},
      {op, "one", kOne, 3, 100, 0, true},
      {op, "tall", kTall, 1, 20, 4, true},
  };
}

inline std::vector<Case> fold_cases() {
  const char* op = "gdn_fold";
  return {
      {op, "0.8B", k0_8B(f32), 1, 0, 16, true},
      {op, "0.8B", k0_8B(bf16), 8, 0, 20, true},
      {op, "27B", k27B(bf16), 1, 0, 16, true},
      {op, "27B", k27B(f32), 1, 0, 9, false},
      {op, "27B", off_grid(k27B(f32)), 1, 0, 5, true},
      {op, "27B", off_grid(k27B(bf16)), 6, 0, 21, true, true},
      {op, "27B", off_grid(k27B(bf16)), 2, 0, 31, true},
      leaving({op, "27B", off_grid(k27B(f16)), 6, 0, 30, true, true}, 7),
      {op, "27B", off_grid(k27B(f32)), 2, 0, 43, true},
      {op, "kda", kKda(bf16), 1, 0, 16, true},
      {op, "odd", kOdd(bf16), 5, 0, 50, true, true},
      {op, "odd", off_grid(kOdd(f16)), 5, 0, 21, true, true},
      {op, "odd", kOdd(f32), 2, 0, 64, true},
      {op, "odd", grain(kOdd(f32), 8), 2, 0, 26, true, false, true},
      {op, "odd_kda", raw_keys(kOddKda(bf16), 1), 3, 0, 37, true, false, true},
      {op, "one", kOne, 2, 0, 16, true},
      {op, "wide", kWide, 2, 0, 17, true},
  };
}

inline std::vector<Case> snapshot_cases() {
  std::vector<Case> cases;
  for (const char* op : {"snapshot_verify", "snapshot_commit"}) {
    const std::vector<Case> both = {
        {op, "0.8B", snapshots(k0_8B(f32)), 1, 4},
        {op, "0.8B", snapshots(k0_8B(bf16)), 4, 8},
        {op, "27B", snapshots(k27B(bf16)), 1, 4},
        {op, "27B", snapshots(k27B(f32)), 1, 4},
        {op, "kda", snapshots(kKda(bf16)), 1, 4},
        {op, "odd", snapshots(kOdd(f16)), 5, 7, 0, false, true},
        {op, "odd_kda", snapshots(kOddKda(f32)), 5, 16, 0, false, true},
        {op, "one", snapshots(kOne), 3, 32},
        {op, "wide", snapshots(kWide), 2, 6},
    };
    cases.insert(cases.end(), both.begin(), both.end());
  }
  const char* op = "snapshot_verify";
  const std::vector<Case> verify = {
      {op, "0.8B", snapshots(k0_8B(bf16)), 1, 1, 0, true},
      {op, "27B", fused(of(bf16, bf16, snapshots(k27B(bf16)))), 1, 4},
      {op, "odd", fused(of(f16, bf16, snapshots(kOdd(f32)))), 5, 7, 0, false, true},
      {op, "odd_kda", of(bf16, f16, snapshots(kOddKda(bf16))), 2, 9, 0, true},
      {op, "odd", snapshots(kOdd(bf16)), 4, 40, 0, true, true},
      {op, "odd", snapshots(raw_keys(kOdd(f32), 1)), 2, 40, 0, false, false, true},
      {op, "odd_kda", snapshots(kOddKda(bf16)), 2, 40, 0, true, false, true},
      {op, "odd_kda", snapshots(scaled(kOddKda(f16), 2)), 2, 30, 0, false, false, true},
  };
  cases.insert(cases.end(), verify.begin(), verify.end());
  return cases;
}

// n counts the tokens before the window; fewer than taps-1 stand for the beginning of a request.
inline std::vector<Case> conv_cases() {
  const char* op = "conv";
  const auto plain = [](Shape s) { return s.record = f32, s; };
  const auto in = [](DType x, DType ring, DType out, Shape s) { return s.record = ring, of(x, out, s); };
  return {
      {op, "0.8B", plain(k0_8B(f32)), 1, 1, 100},
      {op, "0.8B", plain(k0_8B(f32)), 8, 4, 77},
      {op, "27B", plain(k27B(f32)), 1, 4, 9},
      {op, "27B", plain(k27B(f32)), 4, 64, 0},
      {op, "27B", in(bf16, bf16, bf16, k27B(f32)), 2, 4, 9},
      {op, "27B", in(bf16, bf16, bf16, k27B(f32)), 1, 120, 1},
      {op, "group of 8", in(bf16, bf16, bf16, dims(2, 16, 128, 128, 1, bf16, bf16)), 7, 40, 2, false, true, true},
      {op, "full ring", in(bf16, f32, f32, dims(1, 2, 128, 128, 1, bf16, bf16)), 80, 17, 40, false, true},
      {op, "full ring", in(f16, f16, bf16, dims(1, 2, 128, 128, 1, bf16, bf16)), 5, 21, 3, false, true, true},
      {op, "full ring", in(f32, f32, f16, dims(1, 2, 128, 128, 1, bf16, bf16)), 5, 9, 19, false, true},
      {op, "odd", plain(kOdd(f32)), 5, 7, 40, false, true},
      {op, "odd", in(f16, f32, bf16, kOdd(f32)), 5, 7, 40, false, true},
      {op, "odd", in(bf16, bf16, f16, kOdd(f32)), 2, 90, 5, false, false, true},
      {op, "odd", in(f32, f32, bf16, kOdd(f32)), 3, 20, 5},
      {op, "odd", plain(taps(kOdd(f32), 1)), 3, 7, 1},
      {op, "odd", plain(taps(kOdd(f32), 6)), 4, 9, 2},
      {op, "odd", in(f16, f16, f16, taps(kOdd(f32), 6)), 4, 40, 2},
      {op, "odd", plain(kOdd(f32)), 2, 90, 5, false, false, true},
      {op, "one", plain(taps(kOne, 2)), 3, 5, 3, false, true},
  };
}

// B pairs of seats; a ragged case leaves some out. The ring is that of the shape for T = 4 and n records.
inline std::vector<Case> seat_cases() {
  std::vector<Case> cases;
  for (const char* op : {"seat_copy", "seat_pack", "seat_unpack"}) {
    const auto in = [](DType ring, Shape s) { return s.tokens = ring, s; };
    const std::vector<Case> all = {
        {op, "0.8B", in(bf16, k0_8B(bf16)), 4, 4, 9},
        {op, "27B", in(bf16, k27B(bf16)), 1, 4, 15},
        {op, "27B", k27B(f32, f32), 2, 4, 3},
        {op, "kda", kKda(bf16), 1, 4, 7},
        {op, "odd", in(f16, kOdd(f16)), 6, 4, 19, false, true},
        {op, "odd", kOdd(bf16, bf16), 5, 4, 1, false, true},
        {op, "odd_kda", in(bf16, kOddKda(bf16)), 5, 4, 0, false, true},
        {op, "one", kOne, 3, 4, 12},
    };
    cases.insert(cases.end(), all.begin(), all.end());
  }
  return cases;
}

inline std::vector<Case> gates_cases() {
  const char* op = "gdn_gates";
  return {
      {op, "0.8B", k0_8B(f32), 1, 1},
      {op, "27B", k27B(f32), 8, 4},
      {op, "27B", k27B(f32), 1, 256},
      {op, "kda", kKda(f32), 2, 4},
      {op, "odd", kOdd(f32), 1, 40, 0, false, false, true},
      {op, "odd_kda", kOddKda(f32), 1, 40, 0, false, false, true},
      {op, "odd", kOdd(f32), 3, 5},
      {op, "one", kOne, 1, 1},
  };
}

inline std::vector<Case> linear_cases() {
  const auto with = [](const char* model, DType weights, int64_t B, int64_t T, int64_t N, int64_t K) {
    return Case{.op = "linear", .model = model, .shape = kOne, .B = B, .T = T, .matrix = {N, K, weights}};
  };
  return {
      with("0.8B", f32, 1, 1, 512, 1024),
      with("0.8B", bf16, 1, 1, 1024, 1024),
      with("0.8B", bf16, 2, 4, 512, 3584),
      with("0.8B", f16, 1, 4, 512, 1024),
      with("0.8B", f8_e4m3, 1, 1, 1024, 1024),
      with("0.8B", f8_e4m3, 1, 4, 1024, 1024),
      with("0.8B", f8_e4m3, 1, 64, 128, 1024),
      with("blocks", f8_e4m3, 3, 7, 127, 129),
      with("blocks", f8_e4m3, 1, 1, 129, 127),
      with("blocks", f8_e4m3, 1, 5, 257, 700),
      with("odd", bf16, 5, 7, 13, 35),
      with("odd", f8_e4m3, 3, 1, 13, 35),
      with("one", f32, 1, 1, 1, 1),
      with("one", f8_e4m3, 1, 1, 1, 1),
  };
}

inline std::vector<Case> moe_cases() {
  const auto route = [](const char* model, int64_t B, int64_t T, int64_t E, int64_t k, bool corners = false) {
    return Case{
        .op = "moe_route", .model = model, .shape = kOne, .B = B, .T = T, .corners = corners, .experts = {E, k, 1}};
  };
  const auto experts = [](const char* model, int64_t B, int64_t T, MatrixShape matrix, ExpertShape experts) {
    return Case{
        .op = "moe_experts", .model = model, .shape = kOne, .B = B, .T = T, .matrix = matrix, .experts = experts};
  };
  return {
      route("35B-A3B", 1, 1, 256, 8),
      route("Next", 4, 4, 512, 10),
      route("Next", 1, 256, 512, 10),
      route("odd", 3, 5, 7, 7),
      route("odd", 2, 10, 13, 4, true),
      route("one", 3, 1, 1, 1),
      experts("small", 1, 1, {64, 256, bf16}, {16, 4, 64}),
      experts("small", 2, 4, {64, 256, bf16}, {16, 4, 96}),
      experts("small", 2, 4, {64, 256, f8_e4m3}, {16, 4, 64}),
      experts("small", 1, 30, {40, 150, f16}, {6, 3, 24}),
      experts("blocks", 1, 3, {130, 129, f8_e4m3}, {3, 2, 257}),
      experts("odd", 3, 3, {7, 13, f32}, {5, 5, 9}),
      experts("one", 1, 2, {1, 1, bf16}, {1, 1, 1}),
  };
}

}  // namespace detail

inline std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& part : {detail::gates_cases(), detail::verify_cases(), detail::prefill_cases(), detail::fold_cases(),
                           detail::conv_cases(), detail::snapshot_cases(), detail::seat_cases(), detail::linear_cases(),
                           detail::moe_cases()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace deltaring::op_test
