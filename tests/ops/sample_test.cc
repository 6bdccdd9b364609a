#include "ops/sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "backends/tables.h"
#include "base/error.h"
#include "ops/device.h"

namespace deltaring {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kSentinel = -12345.5f;

using Logits = std::vector<float>;
using testing::ElementsAre;
using testing::FloatNear;

// Distinct logits in random order, far enough apart that no cut is a matter of rounding.
Logits shuffled(int64_t vocab, float step, uint32_t seed) {
  Logits x(vocab);
  for (int64_t i = 0; i < vocab; i++) x[i] = -step * static_cast<float>(i);
  std::shuffle(x.begin(), x.end(), std::mt19937(seed));
  return x;
}

class Sample : public testing::TestWithParam<const OpTable*> {
 protected:
  std::vector<int32_t> argmax(const std::vector<Logits>& rows, int64_t valid) {
    const int64_t vocab = static_cast<int64_t>(rows[0].size()), pitch = vocab + 3;
    Logits padded(rows.size() * pitch, kInf);  // whoever reads past a row finds the winner there
    for (size_t r = 0; r < rows.size(); r++) std::copy(rows[r].begin(), rows[r].end(), padded.begin() + r * pitch);
    std::vector<int32_t> out(rows.size() + 1, 77);
    GetParam()->argmax({.logits = {padded.data(), DType::f32, {static_cast<int64_t>(rows.size()), vocab}, {pitch, 1}},
                        .valid = valid,
                        .out = out.data()},
                       *stream_);
    EXPECT_EQ(out.back(), 77);
    out.pop_back();
    return out;
  }
  int32_t argmax(const Logits& row) { return argmax({row}, static_cast<int64_t>(row.size()))[0]; }

  std::vector<Logits> probabilities(const std::vector<Logits>& rows, int64_t valid,
                                    const std::vector<SamplingParams>& params) {
    const int64_t count = static_cast<int64_t>(rows.size()), vocab = static_cast<int64_t>(rows[0].size());
    const int64_t pitch = vocab + 3;
    Logits logits, padded(count * pitch, kSentinel);
    for (const Logits& row : rows) logits.insert(logits.end(), row.begin(), row.end());
    GetParam()->probabilities({.logits = dense<2>(logits.data(), DType::f32, {count, vocab}),
                               .valid = valid,
                               .params = params.data(),
                               .out = {padded.data(), DType::f32, {count, vocab}, {pitch, 1}}},
                              *stream_);
    std::vector<Logits> out;
    for (int64_t r = 0; r < count; r++) {
      out.emplace_back(padded.begin() + r * pitch, padded.begin() + r * pitch + vocab);
      for (int64_t i = vocab; i < pitch; i++) EXPECT_EQ(padded[r * pitch + i], kSentinel);
    }
    return out;
  }
  Logits probabilities(const Logits& row, const SamplingParams& params) {
    return probabilities({row}, static_cast<int64_t>(row.size()), {params})[0];
  }

  std::unique_ptr<Stream> stream_ = GetParam()->make_stream(2);
};
INSTANTIATE_TEST_SUITE_P(Backends, Sample, testing::ValuesIn(replay::on_host(backends())),
                         [](const auto& info) { return info.param->name; });

// The contract, step by step, over logits without ties.
void expect_distribution(const Logits& logits, int64_t valid, const SamplingParams& p, const Logits& got) {
  std::vector<std::pair<double, int64_t>> kept;
  for (int64_t id = 0; id < valid; id++) kept.emplace_back(logits[id], id);
  std::sort(kept.rbegin(), kept.rend());
  const double top = kept[0].first;
  for (auto& [weight, id] : kept) weight = std::exp((weight - top) / p.temperature);
  const auto mass = [&] {
    double sum = 0;
    for (const auto& [weight, id] : kept) sum += weight;
    return sum;
  };
  if (p.top_k > 0 && p.top_k < valid) kept.resize(p.top_k);
  if (p.top_p < 1) {
    const double wanted = p.top_p * mass();
    double sum = 0;
    size_t n = 0;
    while (sum < wanted) sum += kept[n++].first;
    kept.resize(n);
  }
  std::erase_if(kept, [&](const auto& token) { return token.first < p.min_p; });

  const double sum = mass();
  Logits want(logits.size(), 0.0f);
  for (const auto& [weight, id] : kept) want[id] = static_cast<float>(weight / sum);
  double total = 0;
  for (size_t id = 0; id < want.size(); id++) {
    total += got[id];
    // exp of x carries the rounding of x: |x| eps; below the smallest normal number only the absolute size counts.
    const double x = std::min(104.0, std::abs((logits[id] - top) / p.temperature));
    ASSERT_NEAR(got[id], want[id], want[id] * (4 * x + 16) * 0x1p-24 + 1e-37) << "id " << id;
    ASSERT_EQ(got[id] == 0, want[id] == 0 || (want[id] < 1e-37 && got[id] == 0)) << "id " << id;
  }
  EXPECT_NEAR(total, 1, static_cast<double>(kept.size()) * 0x1p-24 + 1e-6);
}

TEST_P(Sample, ArgmaxTakesTheFirstOfTies) {
  EXPECT_EQ(argmax({1, 3, 3, 2, 3}), 1);
  EXPECT_EQ(argmax({-0.0f, 0.0f}), 0);
  EXPECT_EQ(argmax({5}), 0);
  EXPECT_EQ(argmax(Logits(40000, 0.5f)), 0);
  Logits far(40000, -1);
  far[17000] = far[17001] = far[39999] = 2;
  EXPECT_EQ(argmax(far), 17000);
}

TEST_P(Sample, ArgmaxNeverTakesNaN) {
  EXPECT_EQ(argmax({kNaN, 1, kNaN, 2, kNaN}), 3);
  EXPECT_EQ(argmax({kNaN, -kInf, kNaN, -kInf}), 1);
  EXPECT_EQ(argmax({kNaN, kInf, kInf}), 1);
  EXPECT_EQ(argmax({-kInf, -kInf}), 0);
  EXPECT_EQ(argmax({-kInf, -3e38f}), 1);
  EXPECT_EQ(argmax(Logits(50, kNaN)), -1);
  Logits far(40000, kNaN);
  EXPECT_EQ(argmax(far), -1);
  far[20001] = far[20002] = -kInf;
  EXPECT_EQ(argmax(far), 20001);
}

TEST_P(Sample, ArgmaxFindsEveryPositionInEveryRowAndNoPadding) {
  for (int64_t vocab : {1, 7, 16, 33, 100}) {
    std::vector<Logits> rows;
    for (int64_t id = 0; id < vocab; id++) {
      rows.emplace_back(vocab, -1.0f);
      rows.back()[id] = 1;
    }
    const std::vector<int32_t> all = argmax(rows, vocab);
    for (int64_t id = 0; id < vocab; id++) EXPECT_EQ(all[id], id);
    const int64_t valid = vocab / 2 + 1;
    const std::vector<int32_t> some = argmax(rows, valid);
    for (int64_t id = 0; id < vocab; id++) EXPECT_EQ(some[id], id < valid ? id : 0);
  }
  Logits big = shuffled(248077, 0.001f, 3);
  EXPECT_EQ(argmax(big), std::max_element(big.begin(), big.end()) - big.begin());
}

TEST_P(Sample, EveryFilterAloneAndCombined) {
  std::vector<SamplingParams> cases;
  for (float temperature : {1.0f, 0.6f, 1e-4f, 1e30f}) {
    for (int32_t top_k : {0, 1, 20, 5000}) {
      for (float top_p : {1.0f, 0.951f, 0.2173f, 1e-6f}) {
        for (float min_p : {0.0f, 0.0517f, 1.0f}) {
          cases.push_back({.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p});
        }
      }
    }
  }
  for (int64_t valid : {1000, 997}) {
    const Logits logits = shuffled(1000, 0.037f, 11);
    // At a huge temperature all weights are 1 but for rounding: order is still by logit.
    const std::vector<Logits> got = probabilities(std::vector<Logits>(cases.size(), logits), valid, cases);
    for (size_t i = 0; i < cases.size(); i++) {
      SCOPED_TRACE(testing::Message() << "temperature " << cases[i].temperature << " top_k " << cases[i].top_k
                                      << " top_p " << cases[i].top_p << " min_p " << cases[i].min_p);
      expect_distribution(logits, valid, cases[i], got[i]);
    }
  }
}

TEST_P(Sample, AWholeVocabulary) {
  const Logits logits = shuffled(248077, 2e-4f, 5);  // flat: top_p keeps thousands
  const std::vector<SamplingParams> cases{{.temperature = 1, .top_k = 20, .top_p = 0.951f},
                                          {.temperature = 1, .top_p = 0.9017f},
                                          {.temperature = 0.7f, .min_p = 0.05f},
                                          {.temperature = 1}};
  const std::vector<Logits> got = probabilities(std::vector<Logits>(cases.size(), logits), 248070, cases);
  for (size_t i = 0; i < cases.size(); i++) expect_distribution(logits, 248070, cases[i], got[i]);
}

TEST_P(Sample, TiesAtACutKeepTheLowestIds) {
  const Logits tied{0, 1, 1, 0, 1, 1, 0, 1};
  const auto third = FloatNear(1 / 3.0f, 1e-6f);
  EXPECT_THAT(probabilities(tied, {.temperature = 1, .top_k = 3}), ElementsAre(0, third, third, 0, third, 0, 0, 0));
  EXPECT_THAT(probabilities(Logits(4, 2.0f), {.temperature = 0.5f, .top_p = 0.5f}), ElementsAre(0.5f, 0.5f, 0, 0));
  EXPECT_THAT(probabilities(Logits(4, 2.0f), {.temperature = 0.5f, .top_k = 4, .top_p = 0.51f}),
              ElementsAre(third, third, third, 0));
  EXPECT_THAT(probabilities(Logits(4, 2.0f), {.temperature = 1, .min_p = 1}), ElementsAre(.25f, .25f, .25f, .25f));
  EXPECT_THAT(probabilities({1, 3, 3, 2}, {.temperature = 1, .min_p = 1}), ElementsAre(0, 0.5f, 0.5f, 0));
  Logits many(3000, 1.0f);
  many[2999] = 2;
  const Logits got = probabilities(many, {.temperature = 1, .top_k = 300});
  for (int64_t id = 0; id < 3000; id++) EXPECT_EQ(got[id] > 0, id < 299 || id == 2999) << id;
}

TEST_P(Sample, RowsWithoutADistributionAreZero) {
  const std::vector<SamplingParams> settings{{.temperature = 1},
                                             {.temperature = 1, .top_k = 2},
                                             {.temperature = 1, .top_p = 0.9f},
                                             {.temperature = 1, .min_p = 0.1f}};
  for (const SamplingParams& p : settings) {
    for (const Logits& bad : {Logits{1, kNaN, 2, 3, 4}, Logits{1, kInf, 2, 3, 4}, Logits(5, -kInf), Logits(5, kNaN)}) {
      EXPECT_THAT(probabilities(bad, p), testing::Each(0.0f));
    }
    const Logits masked = probabilities({-kInf, 1, -kInf, 1, -kInf}, p);
    EXPECT_THAT(masked, ElementsAre(0, 0.5f, 0, 0.5f, 0));
  }
  // Padding ids may hold anything.
  const std::vector<Logits> padded = probabilities({{1, 1, kNaN, kInf, 9}}, 2, {{.temperature = 1}});
  EXPECT_THAT(padded[0], ElementsAre(0.5f, 0.5f, 0, 0, 0));
}

TEST_P(Sample, ExtremeLogitsAndTemperatures) {
  EXPECT_THAT(probabilities({3e38f, -3e38f, 3e38f}, {.temperature = 1}), ElementsAre(0.5f, 0, 0.5f));
  EXPECT_THAT(probabilities({1, 2, 1.5f}, {.temperature = 1e-40f}), ElementsAre(0, 1, 0));
  EXPECT_THAT(probabilities({-50, 50, 0, -kInf}, {.temperature = 3e38f}),
              ElementsAre(FloatNear(1 / 3.0f, 1e-6f), FloatNear(1 / 3.0f, 1e-6f), FloatNear(1 / 3.0f, 1e-6f), 0));
}

TEST_P(Sample, ThreadsChangeNoBit) {
  const std::vector<Logits> rows(5, shuffled(20000, 0.002f, 9));
  const std::vector<SamplingParams> params(5, {.temperature = 0.8f, .top_p = 0.9f, .min_p = 0.01f});
  const std::vector<Logits> want = probabilities(rows, 20000, params);
  for (int threads : {1, 3}) {
    stream_ = GetParam()->make_stream(threads);
    EXPECT_EQ(probabilities(rows, 20000, params), want);
    EXPECT_EQ(argmax(rows, 20000), argmax(std::vector<Logits>(5, rows[0]), 20000));
  }
}

TEST_P(Sample, RefusesBrokenArgumentsByName) {
  Logits x(12), y(12);
  std::vector<int32_t> ids(3);
  std::vector<SamplingParams> params(3, {.temperature = 1});
  const View<2> view = dense<2>(x.data(), DType::f32, {3, 4});
  const auto refuse = [&](const char* message, auto spoil) {
    ArgmaxArgs a{.logits = view, .valid = 4, .out = ids.data()};
    std::vector<SamplingParams> p = params;
    ProbabilitiesArgs b{.logits = view, .valid = 4, .params = p.data(), .out = dense<2>(y.data(), DType::f32, {3, 4})};
    spoil(a, b, p);
    try {
      GetParam()->argmax(a, *stream_);
      GetParam()->probabilities(b, *stream_);
      FAIL() << "accepted what should say: " << message;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::invalid_argument);
      EXPECT_THAT(e.what(), testing::HasSubstr(message));
    }
  };
  refuse("argmax: logits [rows, vocab] is float16", [](auto& a, auto&, auto&) { a.logits.dtype = DType::f16; });
  refuse("argmax: valid is 5, want [1, vocab = 4]", [](auto& a, auto&, auto&) { a.valid = 5; });
  refuse("argmax: valid is 0", [](auto& a, auto&, auto&) { a.valid = 0; });
  refuse("argmax: out [rows] is null", [](auto& a, auto&, auto&) { a.out = nullptr; });
  refuse("argmax: logits [rows, vocab] is null", [](auto& a, auto&, auto&) { a.logits.data = nullptr; });
  refuse("argmax: logits [rows, vocab] has stride 2 in vocab, want 1",
         [](auto& a, auto&, auto&) { a.logits.stride[1] = 2; });
  refuse("probabilities: out [rows, vocab] has 2 in rows, want 3", [](auto&, auto& b, auto&) { b.out.shape[0] = 2; });
  refuse("probabilities: out [rows, vocab] is null", [](auto&, auto& b, auto&) { b.out.data = nullptr; });
  refuse("probabilities: out [rows, vocab] is bfloat16", [](auto&, auto& b, auto&) { b.out.dtype = DType::bf16; });
  refuse("params [rows] is null", [](auto&, auto& b, auto&) { b.params = nullptr; });
  refuse("temperature of row 1 is 0", [](auto&, auto&, auto& p) { p[1].temperature = 0; });
  refuse("temperature is -1", [](auto&, auto&, auto& p) { p[2].temperature = -1; });
  refuse("temperature is nan", [](auto&, auto&, auto& p) { p[0].temperature = kNaN; });
  refuse("top_k is -1", [](auto&, auto&, auto& p) { p[0].top_k = -1; });
  refuse("top_p is 0", [](auto&, auto&, auto& p) { p[0].top_p = 0; });
  refuse("top_p is 1.5", [](auto&, auto&, auto& p) { p[0].top_p = 1.5f; });
  refuse("min_p is nan", [](auto&, auto&, auto& p) { p[0].min_p = kNaN; });
  refuse("min_p is 2", [](auto&, auto&, auto& p) { p[0].min_p = 2; });
  EXPECT_NO_THROW(check(SamplingParams{}));
}

}  // namespace
}  // namespace deltaring
