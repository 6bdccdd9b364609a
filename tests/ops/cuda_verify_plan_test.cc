// What a verify on tensor cores is launched as, over shapes and devices. Needs neither a GPU nor its compiler.
#include <gtest/gtest.h>

#include "ops/cuda_verify_testing.h"

namespace deltaring::cuda {
namespace {

constexpr DeviceLimits kH200{},
    kA100{.capability = 80, .multiprocessors = 108, .shared_bytes = 163 * 1024, .shared_of_all = 164 * 1024},
    kSmall{.capability = 120, .multiprocessors = 84, .shared_bytes = 99 * 1024, .shared_of_all = 100 * 1024};

TEST(VerifyPlan, ABlockAHeadWhereAllRunAtOnceElseAKeyHead) {
  EXPECT_EQ(plan_verify(qwen(1, 8), kH200).heads, 1);
  EXPECT_EQ(plan_verify(qwen(5, 8), kH200).blocks, 5 * 48);
  EXPECT_EQ(plan_verify(qwen(8, 8, DType::f32), kH200).blocks, 8 * 48);
  EXPECT_EQ(plan_verify(qwen(32, 8), kH200).heads, 3);
  EXPECT_EQ(plan_verify(qwen(4096, 8), kH200).heads, 3);
  EXPECT_EQ(plan_verify(qwen(4224, 8), kH200).blocks, 4224 * 16);  // whole waves
}

// Where a launch of blocks of a head would wait for the one before it, and one of two heads would not.
TEST(VerifyPlan, TwoHeadsWhereLaunchesThenFitSideBySide) {
  const VerifyPlan plan = plan_verify(qwen(8, 8), kH200);
  EXPECT_EQ(plan.heads, 2);
  EXPECT_EQ(plan.blocks, 8 * 32);
  EXPECT_EQ(plan_verify(qwen(8, 16), kH200).heads, 1);  // wide blocks take longer
  EXPECT_EQ(plan_verify(qwen(10, 8), kH200).heads, 1);  // neither fits
  EXPECT_EQ(plan_verify(qwen(4, 8), kA100).heads, 1);   // launches follow each other
}

// Blocks that follow each other end together: a last wave of few is made of short ones.
TEST(VerifyPlan, RowsOfALastWaveHaveBlocksOfAHead) {
  const VerifyPlan plan = plan_verify(qwen(40, 8), kH200);  // 640 blocks of three heads, 528 at a time
  EXPECT_EQ(plan.heads, 3);
  EXPECT_EQ(plan.single, 7);
  EXPECT_EQ(plan.whole, 33);
  EXPECT_EQ(plan.blocks, 33 * 16 + 7 * 48);
  EXPECT_NE(to_string(plan).find("864 blocks of 3 heads, those of 7 rows of one,"), std::string::npos);
  EXPECT_EQ(plan_verify(qwen(128, 8), kH200).single, 0);  // seven eighths of a wave
  VerifyDesc fold = qwen(40, 0);
  fold.layers = 48;
  EXPECT_EQ(plan_verify(fold, kH200).single, 0);
}

// Off the grid 16-bit states promise no bits, and float32 ones only where they are asked for.
TEST(VerifyPlan, ServesOffTheGrid) {
  for (const DType state : {DType::bf16, DType::f16, DType::f32}) {
    for (const bool exact : {false, true}) {
      for (const int64_t R : {16, 32}) {
        for (const int64_t T : {0, 1, 8, 16}) {
          VerifyDesc desc = qwen(4, T, state, exact);
          desc.F = 0, desc.R = R;
          const VerifyPlan plan = plan_verify(desc, kH200);
          SCOPED_TRACE(to_string(plan));
          const bool served = (R == 16 || T == 0) && !(exact && state == DType::f32);
          EXPECT_EQ(plan.kernel, served ? VerifyKernel::tensor : VerifyKernel::generic);
          if (!served) continue;
          EXPECT_FALSE(plan.exact);
          EXPECT_EQ(plan.wide, T > 8 || R > 16);
          EXPECT_LE(plan.shared, kH200.shared_bytes);
        }
      }
    }
  }
}

// Everything that is planned fits the device.
TEST(VerifyPlan, FitsEveryDevice) {
  for (const DeviceLimits& device : {kH200, kA100, kSmall}) {
    for (const DType state : {DType::bf16, DType::f16, DType::f32}) {
      for (const bool exact : {false, true}) {
        for (const int64_t F : {8, 16}) {
          for (int64_t T = 1; T <= 32; T++) {
            for (int64_t R = 16; R <= 64; R *= 2) {
              for (const int64_t B : {1, 3, 64, 512}) {
                VerifyDesc desc = qwen(B, T, state, exact);
                desc.F = F, desc.R = R;
                if (R < T) continue;
                const VerifyPlan plan = plan_verify(desc, device);
                SCOPED_TRACE(to_string(plan));
                EXPECT_LE(plan.shared, device.shared_bytes);
                EXPECT_NE(std::string(plan.reason), "");
                if (plan.kernel == VerifyKernel::generic) continue;
                EXPECT_GE(plan.part * plan.parts, std::min(T, R));
                EXPECT_LE(plan.part, 16);
                EXPECT_TRUE(T <= 16 || plan.exact);
                EXPECT_EQ(plan.appends(), T <= 16);
                EXPECT_EQ(plan.whole + plan.single, B);
                EXPECT_EQ(plan.blocks, plan.turns() * 16 * ((3 + plan.heads - 1) / plan.heads));
              }
            }
          }
        }
      }
    }
  }
}

// The bits of a request may not depend on which window it happens to have: tensor cores serve all T of a shape or none.
TEST(VerifyPlan, OneArithmeticForEveryWindow) {
  for (const DeviceLimits& device : {kH200, kA100, kSmall}) {
    for (const DType state : {DType::bf16, DType::f16, DType::f32}) {
      for (const int64_t F : {8, 16}) {
        for (int64_t R = 2 * F; R <= 64; R *= 2) {
          int served = 0, asked = 0;
          for (int64_t T = 0; T <= R; T++) {
            for (const bool prefill : {false, true}) {
              VerifyDesc desc = qwen(16, T, state, true);
              desc.R = R, desc.F = F, desc.prefill = prefill;
              asked++, served += plan_verify(desc, device).kernel != VerifyKernel::generic;
            }
          }
          EXPECT_TRUE(served == 0 || served == asked) << served << " of " << asked << ", R=" << R << " F=" << F;
          EXPECT_TRUE(served == asked || device.shared_bytes < 120 * 1024);
        }
      }
    }
  }
}

TEST(VerifyPlan, SaysWhyNot) {
  const auto reason = [](auto change) {
    VerifyDesc desc = qwen(64, 8);
    change(desc);
    const VerifyPlan plan = plan_verify(desc, kH200);
    EXPECT_EQ(plan.kernel, VerifyKernel::generic);
    EXPECT_TRUE(plan.exact);
    return std::string(plan.reason);
  };
  EXPECT_EQ(reason([](VerifyDesc& d) { d.K = 64; }), "head dims other than 128 x 128");
  EXPECT_EQ(reason([](VerifyDesc& d) { d.G = 128; }), "a decay a key channel");
  EXPECT_EQ(reason([](VerifyDesc& d) { d.tokens = DType::f32; }), "tokens or records other than bf16");
  EXPECT_EQ(reason([](VerifyDesc& d) { d.records = DType::f16; }), "tokens or records other than bf16");
  EXPECT_EQ(reason([](VerifyDesc& d) { d.F = 0; }), "a verify off the grid with a ring of more than 16 rows");
  EXPECT_EQ(reason([](VerifyDesc& d) { d.F = 0, d.R = 16, d.prefill = true; }), "a prefill off the grid");
  EXPECT_EQ(reason([](VerifyDesc& d) { d.F = d.T = 0, d.R = 64; }),
            "a fold off the grid with a ring of more than 32 rows");
  EXPECT_EQ(reason([](VerifyDesc& d) { d.F = 0, d.R = 16, d.exact = true, d.state = DType::f32; }),
            "a float32 state off the grid whose bits count");
  EXPECT_EQ(reason([](VerifyDesc& d) { d.R = 128; }), "a ring of more than 64 rows");
  EXPECT_EQ(reason([](VerifyDesc& d) { d.R = 48; }), "a ring of more than 64 rows");
  EXPECT_EQ(reason([](VerifyDesc& d) { d.aligned = false; }),
            "rows that do not begin on 16 bytes, or strides above 2^31");
  EXPECT_EQ(reason([](VerifyDesc& d) { d.prefill = true; }), "a prefill that need not have the bits of verifies");
}

TEST(VerifyPlan, Prints) {
  EXPECT_EQ(to_string(plan_verify(qwen(1, 8), kH200)).rfind("tensor: 48 blocks of 1 heads, 1 parts of 8 tokens", 0),
            0u);
}

}  // namespace
}  // namespace deltaring::cuda
