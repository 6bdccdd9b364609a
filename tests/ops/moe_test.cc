#include "ops/moe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "backends/tables.h"
#include "ops/device.h"
#include "ops/refused.h"
#include "ops/tensor.h"

namespace deltaring {
namespace {

using testing::expect_refused;
using testing::kEps;
using testing::same_bits;
using testing::Tensor;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Routed {
  Routed(int64_t tokens, int64_t E, int64_t k, bool with_shared, bool renormalise, int64_t gap = 0)
      : k(k),
        renormalise(renormalise),
        with_shared(with_shared),
        logits(DType::f32, {tokens, E}, gap),
        shared(DType::f32, {tokens, 1}, gap),
        weight(DType::f32, {tokens, k + with_shared}, gap),
        expert(static_cast<size_t>(tokens * (k + with_shared)), -1) {
    std::mt19937 random(static_cast<uint32_t>(tokens * 31 + E));
    logits.fill(random, -4, 4);
    shared.fill(random, -4, 4);
  }
  MoeRouteArgs args() {
    return {.logits = logits.view(),
            .shared = with_shared ? shared.view() : View<2>(),
            .k = k,
            .renormalise = renormalise,
            .expert = expert.data(),
            .weight = weight.view()};
  }
  int32_t chosen(int64_t t, int64_t i) const { return expert[static_cast<size_t>(t * (k + with_shared) + i)]; }

  int64_t k;
  bool renormalise, with_shared;
  Tensor<2> logits, shared, weight;
  std::vector<int32_t> expert;
};

// The same from a sort and sums in double.
void expect_routed(const Routed& r) {
  const auto [tokens, E] = r.logits.view().shape;
  for (int64_t t = 0; t < tokens; t++) {
    std::vector<int32_t> order(static_cast<size_t>(E));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(), [&, t = t](int32_t e) { return r.logits(t, e); });
    double all = 0, chosen = 0;
    for (int64_t e = 0; e < E; e++) all += std::exp(r.logits(t, e));
    for (int64_t i = 0; i < r.k; i++) chosen += std::exp(r.logits(t, order[i]));
    for (int64_t i = 0; i < r.k; i++) {
      ASSERT_EQ(r.chosen(t, i), order[i]) << t << " " << i;
      const double want = std::exp(r.logits(t, order[i])) / (r.renormalise ? chosen : all);
      ASSERT_NEAR(r.weight(t, i), want, kEps * want) << t << " " << i;
    }
    if (!r.with_shared) continue;
    ASSERT_EQ(r.chosen(t, r.k), E);
    const double want = 1 / (1 + std::exp(-r.shared(t, 0)));
    ASSERT_NEAR(r.weight(t, r.k), want, kEps * want);
  }
}

TEST(MoeRoute, ChoosesTheLargestOfTheSoftmaxOverAllExperts) {
  for (const OpTable* backend : replay::on_host(backends())) {
    for (int threads : {1, 3}) {
      const auto stream = backend->make_stream(threads);
      for (const auto& [E, k] : {std::pair<int64_t, int64_t>{1, 1}, {2, 2}, {8, 2}, {9, 5}, {512, 10}}) {
        for (int64_t tokens : {0, 1, 3, 200}) {
          for (const bool shared : {false, true}) {
            for (const bool renormalise : {false, true}) {
              SCOPED_TRACE(
                  fmt::format("{} E={} k={} tokens={} {}{}", backend->name, E, k, tokens, shared, renormalise));
              Routed r(tokens, E, k, shared, renormalise, 2);
              backend->moe_route(r.args(), *stream);
              expect_routed(r);
              ASSERT_TRUE(r.weight.gaps_untouched());
            }
          }
        }
      }
    }
  }
}

TEST(MoeRoute, EqualLogitsGoToTheLowerId) {
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(1);
    Routed r(1, 8, 3, false, true);
    for (int64_t e = 0; e < 8; e++) r.logits.set(e == 5 || e == 2 || e == 7 || e == 3 ? 1.0f : 0.0f, 0, e);
    backend->moe_route(r.args(), *stream);
    EXPECT_EQ(r.expert, (std::vector<int32_t>{2, 3, 5})) << backend->name;
  }
}

TEST(MoeRoute, ExtremeLogitsStayFinite) {
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(1);
    Routed r(2, 4, 2, true, true);
    for (int64_t t = 0; t < 2; t++)
      for (int64_t e = 0; e < 4; e++)
        r.logits.set(t == 0 ? (e == 3 ? 3e38f : -3e38f) : -1e4f * static_cast<float>(e), t, e);
    r.shared.set(-200, 0, 0), r.shared.set(3e38f, 1, 0);
    backend->moe_route(r.args(), *stream);
    EXPECT_EQ(r.expert, (std::vector<int32_t>{3, 0, 4, 0, 1, 4}));
    EXPECT_EQ(r.weight(0, 0), 1);
    EXPECT_EQ(r.weight(0, 1), 0);
    EXPECT_EQ(r.weight(0, 2), 0);
    EXPECT_EQ(r.weight(1, 2), 1);
  }
}

// Whatever a row holds, it chooses experts that there are, and no other row hears of it.
TEST(MoeRoute, NonFiniteLogitsStayInTheirRow) {
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(1);
    Routed clean(4, 6, 3, true, true), dirty(4, 6, 3, true, true);
    dirty.logits.set(kNaN, 1, 4);
    for (int64_t e = 0; e < 6; e++) dirty.logits.set(kNaN, 2, e);
    dirty.logits.set(kInf, 3, 0);
    backend->moe_route(clean.args(), *stream);
    backend->moe_route(dirty.args(), *stream);
    for (int64_t i = 0; i < 4; i++) EXPECT_EQ(dirty.chosen(0, i), clean.chosen(0, i));
    EXPECT_TRUE(same_bits(dirty.weight.view().f32(0), clean.weight.view().f32(0), 4));
    for (int64_t t = 1; t < 4; t++) {
      std::set<int32_t> different;
      for (int64_t i = 0; i < 3; i++) {
        EXPECT_TRUE(std::isnan(dirty.weight(t, i))) << backend->name << " " << t << " " << i;
        EXPECT_GE(dirty.chosen(t, i), 0);
        EXPECT_LT(dirty.chosen(t, i), 6);
        different.insert(dirty.chosen(t, i));
      }
      EXPECT_EQ(different.size(), 3u);
      EXPECT_FALSE(std::isnan(dirty.weight(t, 3)));
    }
  }
}

// E experts of I and a shared one of S, in one dtype.
struct World {
  World(DType dtype, int64_t tokens, int64_t H, int64_t I, int64_t S, int64_t E, int64_t k, int64_t gap = 0)
      : H(H),
        k(k),
        x(DType::f32, {tokens, H}, gap),
        weight(DType::f32, {tokens, k + 1}, gap),
        out(DType::f32, {tokens, H}, gap),
        rows(DType::f32, {tokens * (k + 1), H}, gap),
        gate(DType::f32, {tokens * (k + 1), std::max(I, S)}, gap),
        up(gate) {
    std::mt19937 random(static_cast<uint32_t>(tokens * 7 + H));
    x.fill(random);
    weight.fill(random, 0, 1);
    out.fill(random);
    const auto matrix = [&](int64_t N, int64_t K) {
      memory.push_back(Tensor<2>(dtype, {N, K}, gap).fill(random, -0.5, 0.5));
      if (dtype != DType::f8_e4m3) return WeightMatrix(memory.back().view());
      const View<2> codes = memory.back().view();
      memory.push_back(Tensor<2>(DType::f32, {WeightMatrix::blocks(N), WeightMatrix::blocks(K)}));
      return WeightMatrix(codes, memory.back().fill(random, 0.5, 2).view());
    };
    memory.reserve(static_cast<size_t>(6 * (E + 1)));
    for (int64_t e = 0; e <= E; e++) {
      const int64_t width = e == E ? S : I;
      experts.push_back({.gate = matrix(width, H), .up = matrix(width, H), .down = matrix(H, width)});
    }
    for (int64_t t = 0; t < tokens; t++) {
      std::vector<int32_t> ids(static_cast<size_t>(E));
      std::iota(ids.begin(), ids.end(), 0);
      std::ranges::shuffle(ids, random);
      expert.insert(expert.end(), ids.begin(), ids.begin() + k);
      expert.push_back(static_cast<int32_t>(E));
    }
  }
  // Tokens [first, first + count) alone.
  MoeExpertsArgs args(int64_t first, int64_t count) {
    const int64_t choices = k + 1;
    return {.x = x.view().rows(first, count),
            .expert = expert.data() + first * choices,
            .weight = weight.view().rows(first, count),
            .experts = experts.data(),
            .count = static_cast<int64_t>(experts.size()),
            .rows = rows.view().rows(0, count * choices),
            .gate = gate.view().rows(0, count * choices),
            .up = up.view().rows(0, count * choices),
            .out = out.view().rows(first, count)};
  }
  MoeExpertsArgs args() { return args(0, x.view().shape[0]); }

  static double element(const WeightMatrix& w, int64_t n, int64_t k) {
    const double value = load_as_float(w.values.data, w.values.dtype, w.values.offset(n, k));
    return w.scales ? value * *w.scales.f32(n / WeightMatrix::kBlock, k / WeightMatrix::kBlock) : value;
  }

  // Against sums in double. A product errs by log2 of its length roundings of its absolute values, silu by four and has
  // a slope of at most 1.1, and what errs behind gate and up goes through down.
  void expect_near(const Tensor<2>& before) const {
    const int64_t tokens = x.view().shape[0];
    for (int64_t t = 0; t < tokens; t++) {
      std::vector<double> want(H), error(H);
      for (int64_t i = 0; i <= k; i++) {
        const ExpertWeights& e = experts[expert[t * (k + 1) + i]];
        const int64_t I = e.gate.N();
        const double scale = kEps * (std::log2(std::max(H, I)) + 4), w = weight(t, i);
        for (int64_t j = 0; j < I; j++) {
          double g = 0, u = 0, g_size = 0, u_size = 0;
          for (int64_t c = 0; c < H; c++) {
            g += x(t, c) * element(e.gate, j, c), g_size += std::fabs(x(t, c) * element(e.gate, j, c));
            u += x(t, c) * element(e.up, j, c), u_size += std::fabs(x(t, c) * element(e.up, j, c));
          }
          const double silu = g / (1 + std::exp(-g)), h = silu * u;
          const double wrong = scale * (1.1 * g_size * std::fabs(u) + std::fabs(silu) * u_size + 6 * std::fabs(h));
          for (int64_t c = 0; c < H; c++) {
            const double d = element(e.down, c, j);
            want[c] += w * h * d, error[c] += std::fabs(w * d) * (wrong + scale * std::fabs(h));
          }
        }
      }
      for (int64_t c = 0; c < H; c++) {
        const double tolerance = error[c] + 2 * kEps * (std::fabs(want[c]) + std::fabs(before(t, c)));
        ASSERT_NEAR(out(t, c), before(t, c) + want[c], tolerance) << "out[" << t << ", " << c << "]";
      }
    }
  }

  int64_t H, k;
  Tensor<2> x, weight, out, rows, gate, up;
  std::vector<Tensor<2>> memory;
  std::vector<ExpertWeights> experts;
  std::vector<int32_t> expert;
};

TEST(MoeExperts, AgreesWithDouble) {
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(2);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8_e4m3}) {
      for (int64_t tokens : {0, 1, 4, 33}) {
        for (const auto& [H, I, S] : {std::array<int64_t, 3>{1, 1, 2}, {40, 24, 17}, {130, 9, 150}}) {
          SCOPED_TRACE(fmt::format("{} {} tokens={} H={} I={} S={}", backend->name, name_of(dtype), tokens, H, I, S));
          World world(dtype, tokens, H, I, S, 6, 3, 2);
          const Tensor<2> before = world.out;
          backend->moe_experts(world.args(), *stream);
          world.expect_near(before);
          ASSERT_TRUE(world.out.gaps_untouched());
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// Speculative and plain decoding put a token into different company: it must keep its bits.
TEST(MoeExperts, ATokensBitsAreItsOwn) {
  constexpr int64_t kTokens = 23, H = 150;
  for (const OpTable* backend : replay::on_host(backends())) {
    for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
      World whole(dtype, kTokens, H, 40, 24, 5, 2);
      const auto stream = backend->make_stream(2);
      backend->moe_experts(whole.args(), *stream);
      for (int64_t count : {1, 2, 5, 22}) {
        for (int threads : {1, 3}) {
          World parts(dtype, kTokens, H, 40, 24, 5, 2);
          const auto pool = backend->make_stream(threads);
          for (int64_t t = 0; t < kTokens; t += count)
            backend->moe_experts(parts.args(t, std::min(count, kTokens - t)), *pool);
          for (int64_t t = 0; t < kTokens; t++)
            ASSERT_TRUE(same_bits(whole.out.view().f32(t), parts.out.view().f32(t), H)) << count << " " << t;
        }
      }
    }
  }
}

TEST(MoeExperts, NaNStaysInItsToken) {
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(1);
    World clean(DType::bf16, 6, 30, 20, 10, 4, 2), dirty(DType::bf16, 6, 30, 20, 10, 4, 2);
    dirty.x.set(kNaN, 1, 29);
    dirty.weight.set(kNaN, 4, 2);
    backend->moe_experts(clean.args(), *stream);
    backend->moe_experts(dirty.args(), *stream);
    for (int64_t t = 0; t < 6; t++) {
      if (t == 1 || t == 4) {
        EXPECT_TRUE(std::isnan(dirty.out(t, 0))) << backend->name << " " << t;
      } else {
        EXPECT_TRUE(same_bits(clean.out.view().f32(t), dirty.out.view().f32(t), 30)) << backend->name << " " << t;
      }
    }
  }
}

// Weights come from a mapped file: an expert that nobody chose must not be brought into memory.
TEST(MoeExperts, ReadsTheChosenExpertsOnly) {
  constexpr size_t kBytes = 1 << 16;
  void* forbidden = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(forbidden, MAP_FAILED);
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(2);
    World world(DType::f32, 5, 30, 20, 10, 4, 2);
    for (int32_t& e : world.expert) e = e == 2 ? 3 : e;
    ExpertWeights& unused = world.experts[2];
    for (WeightMatrix* w : {&unused.gate, &unused.up, &unused.down}) w->values.data = forbidden;
    backend->moe_experts(world.args(), *stream);
  }
  munmap(forbidden, kBytes);
}

TEST(MoeRoute, CheckNamesWhatIsWrong) {
  Routed r(3, 8, 2, true, true);
  expect_refused<MoeRouteArgs>(
      r.args(), {
                    {[](auto& a) { a.logits.dtype = DType::bf16; }, "logits [tokens, E] is bfloat16"},
                    {[](auto& a) { a.logits.data = nullptr; }, "logits [tokens, E] is null"},
                    {[](auto& a) { a.shared.shape[0] = 2; }, "shared [tokens, 1] has 2 in tokens, want 3"},
                    {[](auto& a) { a.k = 0; }, "k is 0, want 1 to E = 8"},
                    {[](auto& a) { a.k = 9; }, "k is 9, want 1 to E = 8"},
                    {[](auto& a) { a.k = 3; }, "weight [tokens, choices] has 3 in choices, want 4"},
                    {[](auto& a) { a.expert = nullptr; }, "expert [tokens, choices] is null"},
                    {[](auto& a) { a.weight.stride[0] = 1; }, "weight [tokens, choices] has stride 1 in tokens"},
                });
}

TEST(MoeExperts, CheckNamesWhatIsWrong) {
  World world(DType::bf16, 3, 30, 20, 10, 4, 2);
  const int32_t outside[] = {0, 1, 4, 0, 5, 4, 0, 1, 4};
  std::vector<ExpertWeights> wrong = world.experts;
  wrong[4].up.values.shape[0] = 9;
  std::vector<ExpertWeights> wide = world.experts;
  wide[4].gate.values.shape[0] = wide[4].up.values.shape[0] = wide[4].down.values.shape[1] = 21;
  expect_refused<MoeExpertsArgs>(
      world.args(),
      {
          {[](auto& a) { a.x.dtype = DType::f16; }, "x [tokens, H] is float16"},
          {[](auto& a) { a.x.shape[0] = 2; }, "x [tokens, H] has 2 in tokens, want 3"},
          {[](auto& a) { a.out.shape[1] = 29; }, "out [tokens, H] has 29 in H, want 30"},
          {[](auto& a) { a.rows.shape[0] = 8; }, "rows [tokens * choices, H] has 8 in tokens * choices, want 9"},
          {[](auto& a) { a.up.shape[1] = 19; }, "up [tokens * choices, I] has 19 in I, want 20"},
          {[](auto& a) { a.expert = nullptr; }, "expert [tokens, choices] is null"},
          {[](auto& a) { a.experts = nullptr; }, "experts [count] is null"},
          {[&](auto& a) { a.expert = outside; }, "expert[4] is 5, want [0, count = 5)"},
          {[&](auto& a) { a.experts = wrong.data(); }, "up of an expert [I, H] has 9 in I, want 10"},
          {[&](auto& a) { a.experts = wide.data(); }, "expert 4 has 21 in I, want 1 to 20 of the scratch"},
      });
}

}  // namespace
}  // namespace deltaring
