#include "base/draw.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

namespace deltaring {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Sample, InvertsTheCumulativeSum) {
  const std::array<float, 6> p{0, 0.25f, 0, 0.5f, 0.25f, 0};
  const auto at = [&](double u) { return sample(p.data(), 6, u); };
  EXPECT_EQ(at(0), 1);
  EXPECT_EQ(at(std::nextafter(0.25, 0)), 1);
  EXPECT_EQ(at(0.25), 3);
  EXPECT_EQ(at(std::nextafter(0.75, 0)), 3);
  EXPECT_EQ(at(0.75), 4);
  EXPECT_EQ(at(std::nextafter(1.0, 0)), 4);
  for (double u : {1.0, 2.0, -1.0, double{kNan}}) EXPECT_TRUE(at(u) == 1 || at(u) == 4);
}

TEST(Sample, ScalesByTheSum) {
  const std::array<float, 3> p{30, 10, 0};
  EXPECT_EQ(sample(p.data(), 3, 0.7499), 0);
  EXPECT_EQ(sample(p.data(), 3, 0.75), 1);
}

TEST(Sample, HasNoAnswerWithoutMass) {
  const std::array<float, 3> zeros{}, nans{kNan, kNan, kNan}, negative{-1, 0, -2}, infinite{1, INFINITY, 1},
      mixed{kNan, 0.5f, -1};
  for (const auto& p : {zeros, nans, negative, infinite}) EXPECT_EQ(sample(p.data(), 3, 0.5), -1);
  EXPECT_EQ(sample(mixed.data(), 3, 0.99), 1);
  EXPECT_EQ(sample(zeros.data(), 0, 0.5), -1);
}

}  // namespace
}  // namespace deltaring
