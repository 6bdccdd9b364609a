#include "base/rng.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace deltaring {
namespace {

using Words = std::array<uint32_t, 4>;

TEST(Philox, PublishedVectors) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, IsTheTop53BitsOfTheFirstTwoWords) {
  static_assert(uniform(0, 0, Coin::draft) == static_cast<double>(0x6627e8d5e169c58du >> 11) / 9007199254740992.0);
  EXPECT_EQ(uniform(0, 0, Coin::draft), std::ldexp(static_cast<double>(0x6627e8d5e169c58du >> 11), -53));
}

TEST(Uniform, EveryBitOfSeedPositionAndPurposeMatters) {
  std::set<double> seen;
  size_t asked = 0;
  for (int bit = -1; bit < 64; bit++) {
    const uint64_t x = bit < 0 ? 0 : uint64_t{1} << bit;
    for (Coin coin : {Coin::draft, Coin::accept, Coin::residual}) {
      seen.insert(uniform(x, 0, coin));
      asked++;
      if (bit < 0) continue;
      seen.insert(uniform(0, static_cast<int64_t>(x), coin));
      asked++;
    }
  }
  EXPECT_EQ(seen.size(), asked);
}

TEST(Uniform, StaysBelowOne) {
  constexpr auto kMax = std::numeric_limits<int64_t>::max();
  for (int64_t position : {int64_t{0}, int64_t{1}, kMax, std::numeric_limits<int64_t>::min(), int64_t{-1}}) {
    for (uint64_t seed = 0; seed < 20'000; seed++) {
      const double u = uniform(seed, position, Coin::accept);
      ASSERT_TRUE(u >= 0 && u < 1);
    }
  }
}

// Neighbours along each axis, and two coins of one position, fill 16 x 16 cells evenly: |z| of chi-square below 5.
TEST(Uniform, NeighboursAreIndependent) {
  constexpr int kCells = 16, kTrials = 50'000;
  constexpr double kFreedom = kCells * kCells - 1;
  const auto z_of = [&](auto pair_of) {
    std::array<int, kCells * kCells> count{};
    for (int i = 0; i < kTrials; i++) {
      const auto [x, y] = pair_of(i);
      count[static_cast<int>(x * kCells) * kCells + static_cast<int>(y * kCells)]++;
    }
    double chi2 = 0;
    const double expected = double{kTrials} / count.size();
    for (int c : count) chi2 += (c - expected) * (c - expected) / expected;
    return std::abs(chi2 - kFreedom) / std::sqrt(2 * kFreedom);
  };
  const auto u = [](uint64_t seed, int64_t position, Coin coin) { return uniform(seed, position, coin); };
  EXPECT_LT(z_of([&](int i) { return std::pair(u(7, i, Coin::accept), u(7, i + 1, Coin::accept)); }), 5);
  EXPECT_LT(z_of([&](int i) { return std::pair(u(i, 3, Coin::accept), u(i + 1, 3, Coin::accept)); }), 5);
  EXPECT_LT(z_of([&](int i) { return std::pair(u(7, i, Coin::accept), u(7, i, Coin::residual)); }), 5);
  EXPECT_LT(z_of([&](int i) { return std::pair(u(7, i, Coin::draft), u(7, i, Coin::accept)); }), 5);
  EXPECT_GT(z_of([&](int i) { return std::pair(u(7, i, Coin::draft), u(7, i, Coin::draft)); }), 5);
}

}  // namespace
}  // namespace deltaring
