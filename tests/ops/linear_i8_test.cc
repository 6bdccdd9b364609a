// linear_i8 on both backends: sums are exact, whatever the shape.
#include "ops/linear_i8.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "backends/tables.h"
#include "base/error.h"

namespace deltaring::test {
namespace {

struct Product {
  Product(int64_t M, int64_t N, int64_t K, uint32_t seed) : M(M), N(N), K(K), x(M * K), w(N * K), scale(N) {
    std::mt19937 random(seed);
    const int32_t most = static_cast<int32_t>(std::min<int64_t>(32767, std::numeric_limits<int32_t>::max() / 127 / K));
    for (int16_t& e : x) e = static_cast<int16_t>(static_cast<int32_t>(random() % (2 * most + 1)) - most);
    for (int8_t& e : w) e = static_cast<int8_t>(static_cast<int32_t>(random() % 255) - 127);
    for (float& e : scale) e = 0x1p-20f * static_cast<float>(random() % 1000 + 1);
  }
  // [M, N + 1], the last column a sentinel.
  std::vector<float> on(const char* name, int threads) const {
    const OpTable& ops = backend(name);
    const std::unique_ptr<Stream> stream = ops.make_stream(threads);
    std::vector<float> out(static_cast<size_t>(M * (N + 1)), -7.0f);
    View<2> view = dense<2>(out.data(), DType::f32, {M, N + 1});
    view.shape[1] = N;
    ops.linear_i8({.M = M, .N = N, .K = K, .x = x.data(), .w = w.data(), .scale = scale.data(), .out = view}, *stream);
    return out;
  }

  int64_t M, N, K;
  std::vector<int16_t> x;
  std::vector<int8_t> w;
  std::vector<float> scale;
};

TEST(LinearI8, SumsAreExact) {
  for (const int64_t M : {0, 1, 2, 3, 4, 5, 7, 8, 11}) {
    for (const auto& [N, K] : {std::pair{1, 1}, {3, 15}, {70, 33}, {131, 256}, {64, 1000}}) {
      const Product p(M, N, K, static_cast<uint32_t>(M * 1000 + K));
      const std::vector<float> want = p.on("reference", 1);
      for (const int threads : {1, 3}) {
        const std::vector<float> got = p.on("cpu", threads);
        ASSERT_EQ(got.size(), want.size());
        // The reference rounds once, the others twice.
        for (size_t i = 0; i < want.size(); i++)
          ASSERT_NEAR(got[i], want[i], std::abs(want[i]) * 0x1p-23f) << M << " " << K;
      }
      EXPECT_EQ(p.on("cpu", 1), p.on("cpu", 3));
    }
  }
}

TEST(LinearI8, ExtremesStayInInt32) {
  Product p(5, 9, 4096, 1);
  const auto most = static_cast<int16_t>(std::numeric_limits<int32_t>::max() / 127 / p.K);
  std::fill(p.x.begin(), p.x.end(), most);
  std::fill(p.w.begin(), p.w.end(), int8_t{-127});
  std::fill(p.scale.begin(), p.scale.end(), 1.0f);
  for (const char* name : {"reference", "cpu"}) {
    const std::vector<float> out = p.on(name, 2);
    for (int64_t n = 0; n < p.N; n++) EXPECT_EQ(out[n], static_cast<float>(-127.0 * most * 4096)) << name;
  }
}

TEST(LinearI8, RefusesWhatDoesNotFit) {
  Product p(2, 3, 4, 1);
  std::vector<float> out(6);
  LinearI8Args args{.M = 2,
                    .N = 3,
                    .K = 4,
                    .x = p.x.data(),
                    .w = p.w.data(),
                    .scale = p.scale.data(),
                    .out = dense<2>(out.data(), DType::f32, {2, 3})};
  EXPECT_NO_THROW(check(args));
  for (const auto& spoil : std::initializer_list<void (*)(LinearI8Args&)>{
           [](LinearI8Args& a) { a.K = 0; }, [](LinearI8Args& a) { a.M = -1; }, [](LinearI8Args& a) { a.N = 4; },
           [](LinearI8Args& a) { a.w = nullptr; }, [](LinearI8Args& a) { a.out.stride[1] = 2; }}) {
    LinearI8Args bad = args;
    spoil(bad);
    EXPECT_THROW(check(bad), Error);
  }
}

}  // namespace
}  // namespace deltaring::test
