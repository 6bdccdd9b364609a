#include "model/rotary.h"

#include <gtest/gtest.h>

#include <cmath>

namespace deltaring {
namespace {

TEST(Rotary, PlainFrequenciesAreAGeometricSeries) {
  const std::vector<double> f = rotary_frequencies(8, 1e4);
  ASSERT_EQ(f.size(), 4u);
  for (size_t i = 0; i < 4; i++) EXPECT_NEAR(f[i], std::pow(10.0, -static_cast<double>(i)), 1e-15);
}

TEST(Yarn, KeepsFastDimsStretchesSlowOnesAndRampsBetween) {
  const YarnScaling yarn{.factor = 4, .original_max_position_embeddings = 262144};
  const std::vector<double> plain = rotary_frequencies(64, 1e7), f = yarn_frequencies(64, 1e7, yarn);
  ASSERT_EQ(f.size(), 32u);
  // 262144 positions turn a dim pair 32 times at pair 14.26 and once at pair 21.12: the ramp goes from 14 to 22.
  for (size_t i = 0; i <= 14; i++) EXPECT_EQ(f[i], plain[i]) << i;
  for (size_t i = 22; i < 32; i++) EXPECT_NEAR(f[i], plain[i] / 4, 1e-15 * plain[i]) << i;
  for (size_t i = 15; i < 22; i++) {
    const double ramp = (static_cast<double>(i) - 14) / 8;
    EXPECT_NEAR(f[i], plain[i] * (ramp / 4 + 1 - ramp), 1e-15 * plain[i]) << i;
  }
}

TEST(Yarn, AFactorOfOneChangesNothing) {
  const YarnScaling yarn{.factor = 1, .original_max_position_embeddings = 4096};
  EXPECT_EQ(yarn_frequencies(32, 1e6, yarn), rotary_frequencies(32, 1e6));
  EXPECT_EQ(yarn_attention_factor(1), 1);
}

TEST(Yarn, HasNoGapWhereTheRampHasNoLength) {
  YarnScaling yarn{.factor = 2, .original_max_position_embeddings = 1, .beta_fast = 1, .beta_slow = 1};
  for (const double f : yarn_frequencies(16, 1e4, yarn)) EXPECT_TRUE(std::isfinite(f));
}

TEST(Yarn, AttentionFactor) {
  EXPECT_NEAR(yarn_attention_factor(4), 1.138629436111989, 1e-14);
  EXPECT_NEAR(yarn_attention_factor(4, 0.5), 1.0693147180559945, 1e-14);
}

}  // namespace
}  // namespace deltaring
