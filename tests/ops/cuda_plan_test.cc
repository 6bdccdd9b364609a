// What the generic CUDA kernel runs as. Needs neither a GPU nor its compiler.
#include <gtest/gtest.h>

#include "backends/cuda/gdn/recurrent/config.h"

namespace deltaring::cuda {
namespace {

TEST(RecurrentPlan, CoversEveryRowOfEveryStateOnce) {
  for (int64_t V = 1; V <= 300; V++) {
    const RecurrentPlan plan = plan_recurrent(3, 5, V, 128, 1, DType::bf16, true);
    EXPECT_GE(plan.parts * kBlockRows, V);
    EXPECT_LT((plan.parts - 1) * kBlockRows, V);
    EXPECT_EQ(plan.blocks, 3 * 5 * plan.parts);
  }
}

TEST(RecurrentPlan, TheSmallestInstanceThatHoldsTheKey) {
  for (int64_t K = 1; K <= kWidestK; K++) {
    const RecurrentPlan plan = plan_recurrent(1, 1, 1, K, 1, DType::bf16, true);
    EXPECT_GE(plan.elements * kGroupLanes, K);
    EXPECT_TRUE(plan.elements == 8 || plan.elements / 2 * kGroupLanes < K);
    EXPECT_EQ(plan.wide, K % 8 == 0);
    EXPECT_FALSE(plan.channels);
    EXPECT_EQ(plan_recurrent(1, 1, 1, K, K, DType::bf16, true).channels, K > 1);
    EXPECT_FALSE(plan_recurrent(1, 1, 1, K, 1, DType::bf16, false).wide);
    EXPECT_EQ(plan_recurrent(1, 1, 1, K, 1, DType::f32, true).wide, K % 4 == 0);
  }
}

TEST(RecurrentPlan, NothingToDo) {
  EXPECT_EQ(plan_recurrent(0, 8, 128, 128, 1, DType::bf16, true).blocks, 0);
  EXPECT_EQ(plan_recurrent(4, 8, 0, 128, 1, DType::bf16, true).blocks, 0);
}

// Rows times heads times parts, beyond 32 bits.
TEST(RecurrentPlan, CountsInWideIntegers) {
  EXPECT_EQ(plan_recurrent(int64_t{1} << 21, 1 << 10, 128, 128, 1, DType::bf16, true).blocks, int64_t{1} << 32);
}

}  // namespace
}  // namespace deltaring::cuda
