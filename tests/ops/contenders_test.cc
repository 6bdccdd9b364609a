// contenders on both backends: nobody who may be good enough is missed.
#include "ops/contenders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "backends/tables.h"
#include "base/error.h"

namespace deltaring::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// Numbers that f32 adds without rounding, so that both backends must agree on every id.
struct Estimated {
  Estimated(int64_t M, int64_t N, uint32_t seed)
      : value(static_cast<size_t>(M * N)), error(N), unit(M), slack(M), M(M), N(N) {
    std::mt19937 random(seed);
    const auto fill = [&](std::vector<float>& list, int32_t low, int32_t high) {
      for (float& e : list) e = static_cast<float>(low + static_cast<int32_t>(random() % (high - low)));
    };
    fill(value, -1000, 1000), fill(error, 0, 16), fill(unit, 1, 8), fill(slack, 1, 8);
  }
  Estimate estimate(int64_t valid) {
    value_peaks.clear(), error_peaks.clear();
    for (int64_t m = 0; m < M; m++) add_peaks(value.data() + m * N, valid, value_peaks);
    add_peaks(error.data(), valid, error_peaks);
    return {.value = dense<2>(value.data(), DType::f32, {M, N}),
            .value_peaks = value_peaks.data(),
            .unit = unit.data(),
            .error = error.data(),
            .error_peaks = error_peaks.data(),
            .slack = slack.data()};
  }
  static void add_peaks(const float* x, int64_t count, std::vector<float>& peaks) {
    for (int64_t n = 0; n < count; n++) {
      if (n % Estimate::kBlock == 0) peaks.push_back(x[n]);
      if (x[n] != x[n] || x[n] > peaks.back()) peaks.back() = x[n];
    }
  }
  std::vector<float> value, error, unit, slack, value_peaks, error_peaks;
  int64_t M, N;
};

std::vector<std::vector<int32_t>> on(const char* name, int threads, std::vector<Estimate> sum, int64_t valid,
                                     const std::vector<float>& least, std::vector<std::vector<float>>* rest = nullptr) {
  const OpTable& ops = backend(name);
  const std::unique_ptr<Stream> stream = ops.make_stream(threads);
  std::vector<std::vector<int32_t>> ids(least.size(), {-5});
  if (rest) rest->assign(least.size(), {-5});
  ops.contenders(
      {.sum = sum, .valid = valid, .least = least.data(), .ids = ids.data(), .rest = rest ? rest->data() : nullptr},
      *stream);
  return ids;
}

TEST(Contenders, ThoseThatMayReachTheLeast) {
  for (const int64_t M : {1, 3}) {
    for (const int64_t valid : {0, 1, 7, 63, 511, 513, 4096, 9001}) {
      Estimated a(M, valid + 5, 1), b(M, valid + 5, 2);
      std::vector<float> least;
      for (int64_t m = 0; m < M; m++) least.push_back(static_cast<float>(4000 - 3000 * m));
      for (const std::vector<Estimate>& sum :
           {std::vector{a.estimate(valid)}, {a.estimate(valid), b.estimate(valid)}}) {
        const auto want = on("reference", 1, sum, valid, least);
        for (const int threads : {1, 2, 3}) EXPECT_EQ(on("cpu", threads, sum, valid, least), want) << valid;
      }
    }
  }
}

TEST(Contenders, TheRestIsWhatAllButTheFirstMake) {
  constexpr int64_t N = 777;
  Estimated a(2, N, 1), b(2, N, 2), c(2, N, 3);
  for (const char* name : {"reference", "cpu"}) {
    std::vector<std::vector<float>> rest;
    const auto ids = on(name, 2, {a.estimate(N), b.estimate(N), c.estimate(N)}, N, {3000, -kInf}, &rest);
    ASSERT_EQ(ids[1].size(), size_t{N}) << name;
    for (int64_t m = 0; m < 2; m++) {
      ASSERT_EQ(rest[m].size(), ids[m].size()) << name;
      for (size_t i = 0; i < ids[m].size(); i++) {
        const int32_t n = ids[m][i];
        float want = 0;
        for (const Estimated* e : {&b, &c}) want += e->unit[m] * e->value[m * N + n] + e->slack[m] * e->error[n];
        EXPECT_EQ(rest[m][i], want) << name << " " << n;
      }
    }
    on(name, 1, {a.estimate(N)}, N, {-kInf, kInf}, &rest);
    EXPECT_EQ(rest[0], std::vector<float>(N, 0)) << name;
    EXPECT_TRUE(rest[1].empty()) << name;
  }
}

TEST(Contenders, WhatNobodyKnowsContends) {
  for (const char* name : {"reference", "cpu"}) {
    Estimated a(2, 40, 3);
    std::fill(a.value.begin(), a.value.end(), 0.0f);
    a.error[5] = kInf, a.error[38] = kInf, a.value[9] = kNan, a.value[40 + 10] = -kInf;
    const auto ids = on(name, 2, {a.estimate(40)}, 40, {1e6f, 1e6f});
    EXPECT_THAT(ids[0], ::testing::ElementsAre(5, 9, 38)) << name;
    EXPECT_THAT(ids[1], ::testing::ElementsAre(5, 38)) << name;
    EXPECT_EQ(on(name, 1, {a.estimate(30)}, 30, {kNan, -kInf})[0].size(), 30u) << name;
    EXPECT_EQ(on(name, 1, {a.estimate(30)}, 30, {kNan, -kInf})[1].size(), 30u) << name;
  }
}

TEST(Contenders, EqualOnesContendTogether) {
  for (const char* name : {"reference", "cpu"}) {
    Estimated a(1, 33, 3);
    std::fill(a.value.begin(), a.value.end(), 5.0f), std::fill(a.error.begin(), a.error.end(), 1.0f);
    const float at = 5 * a.unit[0] + a.slack[0];
    EXPECT_EQ(on(name, 1, {a.estimate(33)}, 33, {at})[0].size(), 33u) << name;
    EXPECT_EQ(on(name, 1, {a.estimate(33)}, 33, {std::nextafter(at, kInf)})[0].size(), 0u) << name;
  }
}

TEST(Contenders, RefusesWhatDoesNotFit) {
  Estimated a(1, 8, 1);
  const float least = 0;
  std::vector<int32_t> ids;
  const Estimate fine = a.estimate(8);
  EXPECT_NO_THROW(check(ContendersArgs{.sum = {&fine, 1}, .valid = 8, .least = &least, .ids = &ids}));
  EXPECT_THROW(check(ContendersArgs{.sum = {&fine, 1}, .valid = 9, .least = &least, .ids = &ids}), Error);
  EXPECT_THROW(check(ContendersArgs{.sum = {}, .valid = 8, .least = &least, .ids = &ids}), Error);
  EXPECT_THROW(check(ContendersArgs{.sum = {&fine, 1}, .valid = 8, .least = nullptr, .ids = &ids}), Error);
  Estimate bad = fine;
  bad.error_peaks = nullptr;
  EXPECT_THROW(check(ContendersArgs{.sum = {&bad, 1}, .valid = 8, .least = &least, .ids = &ids}), Error);
}

}  // namespace
}  // namespace deltaring::test
