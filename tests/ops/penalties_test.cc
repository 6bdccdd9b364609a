#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
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

using Rows2 = std::vector<std::vector<float>>;

class Adjust : public testing::TestWithParam<const OpTable*> {
 protected:
  struct Case {
    Penalties penalties{};
    std::vector<TokenCount> counts{};
    std::vector<int32_t> drafts{};
    std::vector<TokenBias> bias{};
  };
  Rows2 penalties(const Rows2& rows, int64_t valid, const Case& c, const OpTable& ops = *GetParam()) {
    const int64_t count = static_cast<int64_t>(rows.size()), vocab = static_cast<int64_t>(rows[0].size());
    std::vector<float> logits, out(count * vocab, -7);
    for (const auto& row : rows) logits.insert(logits.end(), row.begin(), row.end());
    const std::vector<float> before = logits;
    const std::unique_ptr<Stream> stream = ops.make_stream(2);
    ops.penalties({.logits = dense<2>(logits.data(), DType::f32, {count, vocab}),
                   .valid = valid,
                   .penalties = c.penalties,
                   .counts = c.counts,
                   .drafts = c.drafts,
                   .bias = c.bias,
                   .out = dense<2>(out.data(), DType::f32, {count, vocab})},
                  *stream);
    Rows2 result;
    for (int64_t r = 0; r < count; r++) result.emplace_back(out.begin() + r * vocab, out.begin() + (r + 1) * vocab);
    EXPECT_EQ(std::memcmp(logits.data(), before.data(), logits.size() * sizeof(float)), 0)
        << "the model's own logits are for log-probabilities";
    return result;
  }
  struct Logs {
    std::vector<float> chosen, top;
    std::vector<int32_t> top_ids;
  };
  Logs logs(std::vector<float> logits, int64_t vocab, int64_t valid, std::vector<int32_t> ids, int32_t top,
            const OpTable& ops = *GetParam()) {
    const int64_t rows = static_cast<int64_t>(ids.size());
    Logs out{std::vector<float>(rows), std::vector<float>(rows * top), std::vector<int32_t>(rows * top)};
    const std::unique_ptr<Stream> stream = ops.make_stream(2);
    ops.log_probabilities({.logits = dense<2>(logits.data(), DType::f32, {rows, vocab}),
                           .valid = valid,
                           .ids = ids.data(),
                           .out = out.chosen.data(),
                           .top = top,
                           .top_ids = out.top_ids.data(),
                           .top_out = out.top.data()},
                          *stream);
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, Adjust, testing::ValuesIn(replay::on_host(backends())),
                         [](const auto& info) { return info.param->name; });

TEST_P(Adjust, RepetitionCountsPromptAndOutputTheOthersTheOutput) {
  const Rows2 out = penalties({{2, -2, 4, 1}}, 4,
                              {.penalties = {.repetition = 2, .presence = 0.5f, .frequency = 0.25f},
                               .counts = {{.id = 0, .output = 0}, {.id = 1, .output = 0}, {.id = 2, .output = 3}}});
  EXPECT_THAT(out[0], testing::ElementsAre(1, -4, 2 - 0.75f - 0.5f, 1));
}

TEST_P(Adjust, BiasComesLast) {
  const Rows2 out = penalties({{2, 0, 0}}, 3,
                              {.penalties = {.repetition = 2},
                               .counts = {{.id = 0, .output = 1}},
                               .bias = {{.id = 0, .bias = 10}, {.id = 2, .bias = -100}}});
  EXPECT_THAT(out[0], testing::ElementsAre(11, 0, -100));
}

// Row r of a window is the only row of a call whose counts hold the drafts before it.
TEST_P(Adjust, AWindowIsDecodingOneByOne) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal(0, 3);
  constexpr int64_t kVocab = 9, kValid = 7;
  for (int trial = 0; trial < 200; trial++) {
    Case window{.penalties = {.repetition = 0.5f + static_cast<float>(rng() % 8) / 4,
                              .presence = static_cast<float>(rng() % 9) / 2 - 2,
                              .frequency = static_cast<float>(rng() % 9) / 2 - 2}};
    for (int32_t id = 0; id < kValid; id++) {
      if (rng() % 2) window.counts.push_back({.id = id, .output = static_cast<int32_t>(rng() % 3)});
      if (rng() % 4 == 0) window.bias.push_back({.id = id, .bias = normal(rng)});
    }
    for (size_t i = rng() % 6; i > 0; i--) window.drafts.push_back(static_cast<int32_t>(rng() % kValid));
    Rows2 rows(window.drafts.size() + 1, std::vector<float>(kVocab));
    for (auto& row : rows)
      for (float& x : row) x = normal(rng);
    const Rows2 all = penalties(rows, kValid, window);
    Case one = window;
    one.drafts.clear();
    for (size_t r = 0; r < rows.size(); r++) {
      if (r > 0) {
        const int32_t id = window.drafts[r - 1];
        const auto known = std::find_if(one.counts.begin(), one.counts.end(), [&](auto& c) { return c.id == id; });
        if (known == one.counts.end())
          one.counts.push_back({.id = id, .output = 1});
        else
          known->output++;
      }
      ASSERT_EQ(all[r], penalties({rows[r]}, kValid, one)[0]) << "row " << r;
      ASSERT_EQ(all[r], penalties({rows[r]}, kValid, one, backend("reference"))[0]) << "row " << r;
    }
  }
}

TEST_P(Adjust, NanStaysWhereItIsAndPaddingIsCopied) {
  const Rows2 out = penalties({{kNaN, 1, kInf, 5}, {1, 1, -kInf, 6}}, 3,
                              {.penalties = {.repetition = 2}, .counts = {{.id = 0, .output = 1}}, .drafts = {1}});
  EXPECT_TRUE(std::isnan(out[0][0]));
  EXPECT_EQ(out[0][1], 1);
  EXPECT_EQ(out[0][2], kInf);
  EXPECT_EQ(out[0][3], 5);
  EXPECT_THAT(out[1], testing::ElementsAre(0.5f, 0.5f, -kInf, 6));
}

TEST_P(Adjust, LogProbabilitiesAreThoseOfTheWholeLaw) {
  // Logits log(w): the law is w / sum, whatever lies in padding rows.
  const std::vector<float> w{1, 2, 4, 1, 0.5f};
  std::vector<float> logits;
  for (const float x : w) logits.push_back(std::log(x));
  logits.push_back(50);
  const Logs got = logs(logits, 6, 5, {1}, 3);
  EXPECT_NEAR(got.chosen[0], std::log(2 / 8.5), 1e-6);
  EXPECT_THAT(got.top_ids, testing::ElementsAre(2, 1, 0)) << "ties by the lowest id";
  EXPECT_NEAR(got.top[0], std::log(4 / 8.5), 1e-6);
  EXPECT_NEAR(got.top[2], std::log(1 / 8.5), 1e-6);
}

// f32 exponentials err by a few ulp each, so their sum by as much, and the logarithm of it by that in absolute terms.
TEST_P(Adjust, LogProbabilitiesAgreeWithTheReference) {
  std::mt19937 rng(6);
  std::normal_distribution<float> normal(0, 5);
  for (const int64_t vocab : {1, 7, 64, 5000}) {
    std::vector<float> logits(3 * vocab);
    for (float& x : logits) x = normal(rng);
    if (vocab > 1) logits[vocab - 2] = -kInf;
    const std::vector<int32_t> ids{0, static_cast<int32_t>(vocab - 1), static_cast<int32_t>(vocab / 2)};
    const int32_t top = static_cast<int32_t>(std::min<int64_t>(vocab, 20));
    const Logs got = logs(logits, vocab, vocab, ids, top);
    const Logs want = logs(logits, vocab, vocab, ids, top, backend("reference"));
    constexpr float kUlp = std::numeric_limits<float>::epsilon();
    EXPECT_EQ(got.top_ids, want.top_ids);
    for (size_t i = 0; i < ids.size(); i++) {
      EXPECT_NEAR(got.chosen[i], want.chosen[i], 8 * kUlp * (1 + std::abs(want.chosen[i])));
    }
    for (size_t i = 0; i < got.top.size(); i++) {
      if (std::isinf(want.top[i]))
        EXPECT_EQ(got.top[i], want.top[i]);
      else
        EXPECT_NEAR(got.top[i], want.top[i], 8 * kUlp * (1 + std::abs(want.top[i])));
    }
  }
}

TEST_P(Adjust, RowsWithoutALawHaveNoLogProbabilities) {
  for (const std::vector<float>& row : {std::vector<float>{1, kNaN, 2}, {kInf, 0, 0}, {-kInf, -kInf, -kInf}}) {
    const Logs got = logs(row, 3, 3, {0}, 2);
    EXPECT_TRUE(std::isnan(got.chosen[0]));
    EXPECT_TRUE(std::isnan(got.top[0]) && std::isnan(got.top[1]));
    EXPECT_THAT(got.top_ids, testing::ElementsAre(-1, -1));
  }
}

TEST_P(Adjust, RefusesWhatItCannotDo) {
  const Rows2 row{{1, 2, 3}};
  for (const Penalties& p : {Penalties{.repetition = 0}, Penalties{.repetition = -1}, Penalties{.repetition = kNaN},
                             Penalties{.presence = 2.5f}, Penalties{.frequency = -3}, Penalties{.presence = kNaN}}) {
    EXPECT_THROW(penalties(row, 3, {.penalties = p}), Error);
  }
  EXPECT_THROW(penalties(row, 2, {.counts = {{.id = 2, .output = 1}}}), Error);
  EXPECT_THROW(penalties(row, 3, {.counts = {{.id = -1, .output = 1}}}), Error);
  EXPECT_THROW(penalties(row, 3, {.drafts = {1}}), Error) << "a draft without a row";
  EXPECT_THROW(penalties({{1, 2, 3}, {1, 2, 3}}, 2, {.drafts = {2}}), Error);
  EXPECT_THROW(penalties(row, 3, {.bias = {{.id = 3, .bias = 1}}}), Error);
  EXPECT_THROW(penalties(row, 3, {.bias = {{.id = 0, .bias = 101}}}), Error);
  EXPECT_THROW(logs({1, 2, 3}, 3, 3, {3}, 0), Error);
  EXPECT_THROW(logs({1, 2, 3}, 3, 2, {0}, 3), Error);
}

}  // namespace
}  // namespace deltaring
