// What the CUDA convolution runs as. Needs neither a GPU nor its compiler.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "backends/cuda/conv_plan.h"

namespace deltaring::cuda {
namespace {

constexpr ConvDesc kLayer{.B = 128, .T = 8, .C = 10240, .taps = 4, .Rc = 32, .aligned = true};

ConvDesc with_rows(int64_t B, int64_t T) {
  ConvDesc d = kLayer;
  d.B = B, d.T = T;
  return d;
}

// Fails if a chunk were a token short, two blocks took one item, or a later chunk looked into the ring.
TEST(ConvPlan, TakesEveryTokenOfEveryChannelOnce) {
  for (const int multiprocessors : {1, 7, 132}) {
    for (const int64_t T : {0, 1, 3, 4, 5, 8, 16, 17, 31, 32, 33, 100, 1000}) {
      for (const int64_t B : {1, 2, 33, 70}) {
        for (const int64_t taps : {1, 2, 4, 6, 40, 2000}) {
          for (const int64_t C : {1, 8, 130, 4096, 10240}) {
            const ConvDesc d{.B = B, .T = T, .C = C, .taps = taps, .Rc = taps, .aligned = true};
            const ConvPlan plan = plan_conv(d, {.multiprocessors = multiprocessors});
            EXPECT_GE(plan.chunks * plan.tokens, T);
            EXPECT_LT((plan.chunks - 1) * plan.tokens, std::max<int64_t>(T, 1));
            EXPECT_TRUE(plan.chunks == 1 || plan.tokens >= taps - 1);
            const int64_t width = kConvThreads * (plan.wide ? kConvWidth : 1);
            EXPECT_GE(plan.channels * width, C);
            EXPECT_LT((plan.channels - 1) * width, C);
            std::vector<int> taken(B * plan.chunks);
            ASSERT_EQ(plan.items, B * plan.chunks);
            for (int64_t block = 0; block < plan.blocks; block++) {
              for (int64_t item = block / plan.channels; item < plan.items; item += plan.blocks / plan.channels)
                taken[item]++;
            }
            EXPECT_EQ(std::ranges::count(taken, plan.channels), B * plan.chunks);
          }
        }
      }
    }
  }
}

TEST(ConvPlan, WideWherePiecesAreWholeAndCountsAreSmall) {
  EXPECT_TRUE(plan_conv(kLayer, {}).wide);
  for (const auto& change : std::vector<void (*)(ConvDesc&)>{
           [](ConvDesc& d) { d.aligned = false; }, [](ConvDesc& d) { d.taps = 3; }, [](ConvDesc& d) { d.taps = 5; },
           [](ConvDesc& d) { d.C = 10244; }, [](ConvDesc& d) { d.C = (int64_t{1} << 30) + 8; },
           [](ConvDesc& d) { d.Rc = (int64_t{1} << 30) + 1; }, [](ConvDesc& d) { d.T = (int64_t{1} << 30) + 1; }}) {
    ConvDesc d = kLayer;
    change(d);
    EXPECT_FALSE(plan_conv(d, {}).wide);
  }
}

// A large batch goes along its rows with all that the device has room for, a small one is cut up.
TEST(ConvPlan, CutsRowsForTheSakeOfIdleMultiprocessorsOnly) {
  const auto tokens = [](int64_t B, int64_t T) { return plan_conv(with_rows(B, T), {}).tokens; };
  EXPECT_EQ(plan_conv(kLayer, {}), (ConvPlan{true, true, 32, 1, 128, 10, 520}));
  EXPECT_EQ(plan_conv(with_rows(1, 8), {}), (ConvPlan{true, true, 4, 2, 2, 10, 20}));
  EXPECT_EQ(tokens(64, 8), 32);
  EXPECT_EQ(tokens(16, 8), 4);
  EXPECT_EQ(tokens(1, 2048), 32);
  EXPECT_EQ(tokens(1, 512), 16);
  ConvDesc long_taps = with_rows(1, 8);
  long_taps.taps = 7;
  EXPECT_EQ(plan_conv(long_taps, {}).tokens, 6);
}

TEST(ConvPlan, BeginsEarlyWhereTheDeviceCan) {
  EXPECT_TRUE(plan_conv(kLayer, {.capability = 90}).early);
  EXPECT_FALSE(plan_conv(kLayer, {.capability = 80}).early);
}

TEST(ConvPlan, NoRows) { EXPECT_EQ(plan_conv(with_rows(0, 0), {}).blocks, 0); }

// Channels of one plain kernel and chunks of all rows, beyond 32 bits.
TEST(ConvPlan, CountsInWideIntegers) {
  EXPECT_EQ(plan_conv(with_rows(1 << 20, 1 << 20), {}).items, int64_t{1} << 35);
  ConvDesc d = kLayer;
  d.C = int64_t{1} << 40;
  EXPECT_EQ(plan_conv(d, {}).channels, int64_t{1} << 33);
}

}  // namespace
}  // namespace deltaring::cuda
