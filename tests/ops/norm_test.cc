#include "ops/norm.h"

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
constexpr float kRmsEps = 1e-6f;

struct Shape {
  int64_t rows, groups, D, gap;
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (int64_t rows : {0, 1, 3, 40})
    for (int64_t groups : {1, 5})
      for (int64_t D : {1, 3, 7, 8, 9, 64, 128, 257, 1030})
        all.push_back({rows, groups, D, static_cast<int64_t>(all.size() % 3)});
  return all;
}

std::vector<float> weights(std::mt19937& random, int64_t D) {
  std::uniform_real_distribution<float> uniform(-1.5f, 1.5f);
  std::vector<float> w(D);
  for (float& value : w) value = uniform(random);
  return w;
}

double inverse_rms(const Tensor<3>& x, int64_t r, int64_t g) {
  double sum = 0;
  for (int64_t i = 0; i < x.view().shape[2]; i++) sum += x(r, g, i) * x(r, g, i);
  return 1 / std::sqrt(sum / static_cast<double>(x.view().shape[2]) + kRmsEps);
}

// A sum of D squares in f32 errs by a small multiple of log2 D roundings, its root by half of that; five more come from
// root, centre, two products and the store.
double tolerance(double magnitude, int64_t D) { return kEps * (std::log2(static_cast<double>(D)) + 5) * magnitude; }

TEST(RmsNorm, AgreesWithDoubleAndMayAlias) {
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(2);
    for (const auto& [rows, groups, D, gap] : shapes()) {
      for (bool zero_centred : {false, true}) {
        for (bool alias : {false, true}) {
          SCOPED_TRACE(fmt::format("{} [{}, {}, {}] gap={} zero_centred={} alias={}", backend->name, rows, groups, D,
                                   gap, zero_centred, alias));
          std::mt19937 random(7);
          Tensor<3> x(DType::f32, {rows, groups, D}, gap), out = x;
          x.fill(random, -3, 3);
          const Tensor<3> before = x;
          const std::vector<float> w = weights(random, D);
          Tensor<3>& target = alias ? x : out;
          backend->rms_norm(
              {.x = x.view(), .w = w.data(), .eps = kRmsEps, .zero_centred = zero_centred, .out = target.view()},
              *stream);
          for (int64_t r = 0; r < rows; r++) {
            for (int64_t g = 0; g < groups; g++) {
              const double inverse = inverse_rms(before, r, g), centre = zero_centred ? 1 : 0;
              for (int64_t i = 0; i < D; i++) {
                const double normed = before(r, g, i) * inverse, want = normed * (centre + w[i]);
                const double magnitude = std::fabs(normed) * (centre + std::fabs(w[i]));
                ASSERT_LE(std::fabs(target(r, g, i) - want), tolerance(magnitude, D)) << r << " " << g << " " << i;
              }
            }
          }
          ASSERT_TRUE(target.gaps_untouched());
        }
      }
    }
  }
}

TEST(GatedRmsNorm, AgreesWithDoubleAndMayAlias) {
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(2);
    for (const auto& [tokens, Hv, V, gap] : shapes()) {
      for (bool alias : {false, true}) {
        SCOPED_TRACE(fmt::format("{} [{}, {}, {}] gap={} alias={}", backend->name, tokens, Hv, V, gap, alias));
        std::mt19937 random(8);
        Tensor<3> x(DType::f32, {tokens, Hv, V}, gap), z = x, out = x;
        x.fill(random, -3, 3);
        z.fill(random, -20, 20);
        const Tensor<3> before = x;
        const std::vector<float> w = weights(random, V);
        Tensor<3>& target = alias ? x : out;
        backend->gated_rms_norm({.x = x.view(), .z = z.view(), .w = w.data(), .eps = kRmsEps, .out = target.view()},
                                *stream);
        for (int64_t t = 0; t < tokens; t++) {
          for (int64_t h = 0; h < Hv; h++) {
            const double inverse = inverse_rms(before, t, h);
            for (int64_t i = 0; i < V; i++) {
              const double gate = z(t, h, i), want = before(t, h, i) * inverse * w[i] * gate / (1 + std::exp(-gate));
              ASSERT_LE(std::fabs(target(t, h, i) - want), tolerance(std::fabs(want), V) + 3 * kEps * std::fabs(want))
                  << t << " " << h << " " << i;
            }
          }
        }
        ASSERT_TRUE(target.gaps_untouched());
      }
    }
  }
}

// A row alone, among others, and in any number of threads has the same bits; NaN stays in its group.
TEST(RmsNorm, IsRowInvariantAndContainsNaN) {
  constexpr int64_t rows = 64, groups = 3, D = 261;
  for (const OpTable* backend : replay::on_host(backends())) {
    std::mt19937 random(9);
    Tensor<3> x(DType::f32, {rows, groups, D}), z = x, out = x, gated = x;
    x.fill(random);
    z.fill(random);
    const std::vector<float> w = weights(random, D);
    const auto run = [&](const Tensor<3>& in, int64_t row, int64_t count, int threads, Tensor<3>& to,
                         Tensor<3>& to_gated) {
      const auto stream = backend->make_stream(threads);
      const View<3> part = in.view().rows(row, count);
      backend->rms_norm(
          {.x = part, .w = w.data(), .eps = kRmsEps, .zero_centred = true, .out = to.view().rows(row, count)}, *stream);
      backend->gated_rms_norm({.x = part,
                               .z = z.view().rows(row, count),
                               .w = w.data(),
                               .eps = kRmsEps,
                               .out = to_gated.view().rows(row, count)},
                              *stream);
    };
    run(x, 0, rows, 2, out, gated);
    for (int threads : {1, 3}) {
      Tensor<3> other = x, other_gated = x;
      run(x, 0, rows, threads, other, other_gated);
      ASSERT_TRUE(other == out && other_gated == gated) << backend->name << " threads " << threads;
    }
    Tensor<3> single = x, single_gated = x;
    for (int64_t r = 0; r < rows; r++) run(x, r, 1, 1, single, single_gated);
    ASSERT_TRUE(single == out && single_gated == gated) << backend->name;

    Tensor<3> dirty = x, dirty_out = x, dirty_gated = x;
    dirty.set(kNaN, 5, 1, D - 1);
    run(dirty, 0, rows, 2, dirty_out, dirty_gated);
    for (int64_t r = 0; r < rows; r++) {
      for (int64_t g = 0; g < groups; g++) {
        if (r == 5 && g == 1) {
          EXPECT_TRUE(std::isnan(dirty_out(r, g, 0)) && std::isnan(dirty_gated(r, g, 0)));
        } else {
          EXPECT_TRUE(same_bits(dirty_out.view().f32(r, g), out.view().f32(r, g), D));
          EXPECT_TRUE(same_bits(dirty_gated.view().f32(r, g), gated.view().f32(r, g), D));
        }
      }
    }
  }
}

TEST(RmsNorm, CheckNamesWhatIsWrong) {
  const Tensor<3> x(DType::f32, {3, 2, 7}), out = x;
  const std::vector<float> w(7);
  expect_refused<RmsNormArgs>(
      {.x = x.view(), .w = w.data(), .eps = kRmsEps, .zero_centred = true, .out = out.view()},
      {
          {[](auto& a) { a.w = nullptr; }, "rms_norm: w [D] is null"},
          {[](auto& a) { a.eps = -1; }, "rms_norm: eps is -1"},
          {[](auto& a) { a.eps = kNaN; }, "rms_norm: eps is nan"},
          {[](auto& a) { a.x.shape[1] = -1; }, "x [rows, groups, D] has -1 in groups, want >= 0"},
          {[](auto& a) { a.x.dtype = DType::bf16; }, "x [rows, groups, D] is bfloat16, want float32"},
          {[](auto& a) { a.out.dtype = DType::bf16; }, "out [rows, groups, D] is bfloat16, want float32"},
          {[](auto& a) { a.out.shape[0] = 2; }, "out [rows, groups, D] has 2 in rows, want 3"},
          {[](auto& a) { a.x.data = nullptr; }, "x [rows, groups, D] is null"},
          {[](auto& a) { a.out.stride[2] = 2; }, "out [rows, groups, D] has stride 2 in D, want 1"},
          {[](auto& a) { a.out.stride[1] = 6; }, "out [rows, groups, D] has stride 6 in groups, want at least 7"},
      });
}

TEST(GatedRmsNorm, CheckNamesWhatIsWrong) {
  const Tensor<3> x(DType::f32, {3, 2, 7}), z = x, out = x;
  const std::vector<float> w(7);
  expect_refused<GatedRmsNormArgs>(
      {.x = x.view(), .z = z.view(), .w = w.data(), .eps = kRmsEps, .out = out.view()},
      {
          {[](auto& a) { a.w = nullptr; }, "gated_rms_norm: w [V] is null"},
          {[](auto& a) { a.z.dtype = DType::f16; }, "z [tokens, Hv, V] is float16, want float32"},
          {[](auto& a) { a.z.shape[1] = 1; }, "z [tokens, Hv, V] has 1 in Hv, want 2"},
          {[](auto& a) { a.z.data = nullptr; }, "z [tokens, Hv, V] is null"},
          {[](auto& a) { a.out.data = nullptr; }, "out [tokens, Hv, V] is null"},
          {[](auto& a) { a.x.stride[2] = 0; }, "x [tokens, Hv, V] has stride 0 in V, want 1"},
      });
}

}  // namespace
}  // namespace deltaring
