#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backends/tables.h"
#include "ops/device.h"
#include "ops/linear.h"
#include "ops/refused.h"
#include "ops/tensor.h"

namespace deltaring {
namespace {

using testing::expect_refused;
using testing::kEps;
using testing::Tensor;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// silu by Highway's exp errs by less than four roundings of the result; where it has become denormal, by its smallest
// normal neighbour.
TEST(Swiglu, AgreesWithDoubleAndMayAliasItsInputs) {
  for (const OpTable* backend : replay::on_host(backends())) {
    for (int threads : {1, 2}) {
      const auto stream = backend->make_stream(threads);
      for (int64_t tokens : {0, 1, 3, 200}) {
        for (int64_t I : {1, 3, 8, 9, 33, 257}) {
          for (int alias : {0, 1, 2}) {
            SCOPED_TRACE(fmt::format("{} tokens={} I={} alias={}", backend->name, tokens, I, alias));
            std::mt19937 random(5);
            Tensor<2> gate(DType::f32, {tokens, I}, 1), up = gate, out = gate;
            gate.fill(random, -30, 30);
            up.fill(random, -2, 2);
            if (tokens) gate.set(-120.0f, 0, 0);
            const Tensor<2> gate_before = gate, up_before = up;
            Tensor<2>& target = alias == 0 ? out : alias == 1 ? gate : up;
            backend->swiglu({.gate = gate.view(), .up = up.view(), .out = target.view()}, *stream);
            for (int64_t t = 0; t < tokens; t++) {
              for (int64_t i = 0; i < I; i++) {
                const double g = gate_before(t, i), want = g / (1 + std::exp(-g)) * up_before(t, i);
                ASSERT_LE(std::fabs(target(t, i) - want), 4 * kEps * std::fabs(want) + 0x1p-119) << g;
              }
            }
            ASSERT_TRUE(target.gaps_untouched());
          }
        }
      }
    }
  }
}

TEST(Swiglu, NaNStaysInItsElement) {
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(1);
    std::mt19937 random(6);
    Tensor<2> gate(DType::f32, {2, 19}), up = gate, out = gate;
    gate.fill(random);
    up.fill(random);
    gate.set(kNaN, 0, 4);
    up.set(kNaN, 1, 18);
    backend->swiglu({.gate = gate.view(), .up = up.view(), .out = out.view()}, *stream);
    for (int64_t t = 0; t < 2; t++)
      for (int64_t i = 0; i < 19; i++)
        EXPECT_EQ(std::isnan(out(t, i)), (t == 0 && i == 4) || (t == 1 && i == 18)) << backend->name << t << " " << i;
  }
}

TEST(Swiglu, CheckNamesWhatIsWrong) {
  const Tensor<2> gate(DType::f32, {3, 7}), up = gate, out = gate;
  expect_refused<SwigluArgs>(
      {.gate = gate.view(), .up = up.view(), .out = out.view()},
      {
          {[](auto& a) { a.gate.dtype = DType::f16; }, "gate [tokens, I] is float16"},
          {[](auto& a) { a.up.dtype = DType::f16; }, "up [tokens, I] is float16"},
          {[](auto& a) { a.out.dtype = DType::f16; }, "out [tokens, I] is float16"},
          {[](auto& a) { a.gate.shape[0] = 2; }, "up [tokens, I] has 3 in tokens, want 2"},
          {[](auto& a) { a.up.shape[1] = 8; }, "up [tokens, I] has 8 in I, want 7"},
          {[](auto& a) { a.out.shape[1] = 0; }, "out [tokens, I] has 0 in I, want 7"},
          {[](auto& a) { a.gate.data = nullptr; }, "gate [tokens, I] is null"},
          {[](auto& a) { a.up.stride[1] = 7; }, "up [tokens, I] has stride 7 in I, want 1"},
          {[](auto& a) { a.out.stride[0] = 1; }, "out [tokens, I] has stride 1 in tokens, want at least 7"},
      });
}

}  // namespace
}  // namespace deltaring
