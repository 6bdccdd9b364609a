#include "ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

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
constexpr double kTheta = 1e7;

// Five requests: one token at the start, an empty one, a window far out, one without a seat, a long prefill.
struct Batch {
  std::vector<int32_t> start{0, 1, 1, 5, 8, 48}, seat{2, 0, 1, -1, 7};
  std::vector<int64_t> first{0, 9, 262139, 4, 1000};

  Rows rows() const {
    return {
        .count = static_cast<int32_t>(seat.size()), .start = start.data(), .seat = seat.data(), .first = first.data()};
  }
  int64_t tokens() const { return start.back(); }
  // Position of a token, -1 without a seat.
  int64_t position(int64_t token) const {
    size_t b = 0;
    while (start[b + 1] <= token) b++;
    return seat[b] < 0 ? -1 : first[b] + token - start[b];
  }
};

TEST(Rope, AgreesWithDoubleAndTouchesRotaryDimsOnly) {
  const Batch batch;
  for (const OpTable* backend : replay::on_host(backends())) {
    for (int threads : {1, 2, 3}) {
      const auto stream = backend->make_stream(threads);
      for (const auto& [heads, D, rotary] :
           {std::array<int64_t, 3>{1, 1, 0}, {2, 2, 2}, {3, 7, 6}, {4, 32, 8}, {1, 64, 64}, {8, 80, 20}}) {
        SCOPED_TRACE(fmt::format("{} threads={} heads={} D={} rotary={}", backend->name, threads, heads, D, rotary));
        std::mt19937 random(10);
        Tensor<3> x(DType::f32, {batch.tokens(), heads, D}, D % 3);
        x.fill(random, -2, 2);
        const Tensor<3> before = x;
        backend->rope({.rows = batch.rows(), .x = x.view(), .rotary = rotary, .theta = kTheta}, *stream);
        for (int64_t t = 0; t < batch.tokens(); t++) {
          const int64_t half = rotary / 2, p = batch.position(t);
          for (int64_t h = 0; h < heads; h++) {
            const int64_t rotated = p < 0 ? 0 : rotary;
            ASSERT_TRUE(same_bits(x.view().f32(t, h, rotated), before.view().f32(t, h, rotated), D - rotated));
            for (int64_t i = 0; i < rotated; i++) {
              const int64_t pair = i % half;
              const double angle = static_cast<double>(p) *
                                   std::pow(kTheta, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary));
              const double low = before(t, h, pair), high = before(t, h, pair + half);
              const double want = i < half ? low * std::cos(angle) - high * std::sin(angle)
                                           : high * std::cos(angle) + low * std::sin(angle);
              // The factors, the products and their sum are rounded; the angle itself has double precision.
              const double tolerance = 1.5 * kEps * (std::fabs(low) + std::fabs(high));
              ASSERT_LE(std::fabs(x(t, h, i) - want), tolerance) << "token " << t << " head " << h << " dim " << i;
            }
          }
        }
        ASSERT_TRUE(x.gaps_untouched());
      }
    }
  }
}

// A stretched context has frequencies of its own, and longer vectors.
TEST(Rope, TakesFrequenciesAndAnAmplitude) {
  constexpr int64_t kRotary = 6;
  constexpr double kAmplitude = 1.25;
  const double frequency[kRotary / 2] = {0.3, 0.02, 0};
  const Batch batch;
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(2);
    std::mt19937 random(12);
    Tensor<3> x(DType::f32, {batch.tokens(), 2, 9}, 1);
    x.fill(random, -2, 2);
    const Tensor<3> before = x;
    backend->rope({.rows = batch.rows(),
                   .x = x.view(),
                   .rotary = kRotary,
                   .theta = kNaN,
                   .frequency = frequency,
                   .amplitude = kAmplitude},
                  *stream);
    for (int64_t t = 0; t < batch.tokens(); t++) {
      const int64_t p = batch.position(t);
      ASSERT_TRUE(same_bits(x.view().f32(t, 1, kRotary), before.view().f32(t, 1, kRotary), 3));
      for (int64_t i = 0; i < kRotary / 2; i++) {
        const double low = before(t, 1, i), high = before(t, 1, i + 3), angle = static_cast<double>(p) * frequency[i];
        const double want = p < 0 ? low : kAmplitude * (low * std::cos(angle) - high * std::sin(angle));
        ASSERT_NEAR(x(t, 1, i), want, 2 * kEps * (std::fabs(low) + std::fabs(high))) << backend->name << " " << t;
      }
    }
    ASSERT_TRUE(x.gaps_untouched());
  }
}

// A token's bits depend on its position only: not on its row, its row's first token, its head or the threads.
TEST(Rope, DependsOnThePositionAlone) {
  constexpr int64_t heads = 3, D = 32, rotary = 16, tokens = 90;
  for (const OpTable* backend : replay::on_host(backends())) {
    std::mt19937 random(11);
    Tensor<3> whole(DType::f32, {tokens, heads, D});
    whole.fill(random);
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t i = 0; i < D; i++) whole.set(static_cast<float>(whole(t, 0, i)), t, 2, i);
    const Tensor<3> before = whole;
    const int32_t seat = 0, ends[] = {0, tokens}, one[] = {0, 1};
    const int64_t first = 70000;
    const auto stream = backend->make_stream(2);
    backend->rope({.rows = {.count = 1, .start = ends, .seat = &seat, .first = &first},
                   .x = whole.view(),
                   .rotary = rotary,
                   .theta = kTheta},
                  *stream);
    Tensor<3> single = before;
    for (int64_t t = 0; t < tokens; t++) {
      const int64_t position = first + t;
      backend->rope({.rows = {.count = 1, .start = one, .seat = &seat, .first = &position},
                     .x = single.view().rows(t, 1),
                     .rotary = rotary,
                     .theta = kTheta},
                    *stream);
    }
    EXPECT_TRUE(single == whole) << backend->name;
    for (int64_t t = 0; t < tokens; t++) EXPECT_TRUE(same_bits(whole.view().f32(t, 0), whole.view().f32(t, 2), D));
  }
}

TEST(Rope, NaNStaysInItsPair) {
  const Batch batch;
  constexpr int64_t heads = 2, D = 16, rotary = 8;
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(2);
    std::mt19937 random(12);
    Tensor<3> clean(DType::f32, {batch.tokens(), heads, D});
    clean.fill(random);
    Tensor<3> dirty = clean;
    dirty.set(kNaN, 10, 1, 2);
    for (Tensor<3>* x : {&clean, &dirty})
      backend->rope({.rows = batch.rows(), .x = x->view(), .rotary = rotary, .theta = kTheta}, *stream);
    for (int64_t i : {2, 6}) {
      EXPECT_TRUE(std::isnan(dirty(10, 1, i))) << backend->name;
      dirty.set(static_cast<float>(clean(10, 1, i)), 10, 1, i);
    }
    EXPECT_TRUE(dirty == clean) << backend->name;
  }
}

TEST(Rope, CheckNamesWhatIsWrong) {
  const Batch batch;
  const Tensor<3> x(DType::f32, {batch.tokens(), 2, 8});
  expect_refused<RopeArgs>(
      {.rows = batch.rows(), .x = x.view(), .rotary = 4, .theta = kTheta},
      {
          {[](auto& a) { a.x.dtype = DType::bf16; }, "x [tokens, heads, D] is bfloat16, want float32"},
          {[](auto& a) { a.x.data = nullptr; }, "x [tokens, heads, D] is null"},
          {[](auto& a) { a.x.stride[2] = 2; }, "x [tokens, heads, D] has stride 2 in D, want 1"},
          {[](auto& a) { a.x.shape[0] = 47; }, "rows hold 48 tokens, the views 47"},
          {[](auto& a) { a.rows.count = 0; }, "rows hold 0 tokens, the views 48"},
          {[](auto& a) { a.rows.first = nullptr; }, "need start and first"},
          {[](auto& a) { a.rotary = 3; }, "rotary is 3, want an even number in [0, D = 8]"},
          {[](auto& a) { a.rotary = 10; }, "rotary is 10"},
          {[](auto& a) { a.rotary = -2; }, "rotary is -2"},
          {[](auto& a) { a.theta = 0; }, "theta is 0"},
          {[](auto& a) { a.theta = kNaN; }, "theta is nan"},
          {[](auto& a) { a.amplitude = 0; }, "amplitude is 0, want > 0"},
          {[](auto& a) { a.amplitude = kNaN; }, "amplitude is nan"},
      });
}

}  // namespace
}  // namespace deltaring
