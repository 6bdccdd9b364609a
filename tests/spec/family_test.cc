// Speculation equals plain decoding for every kind of model: tokens, and the bits of all logits.
#include <gtest/gtest.h>

#include "spec/schedules.h"
#include "support/family.h"

namespace deltaring::test {
namespace {

class Family : public testing::TestWithParam<std::pair<std::string, ModelConfig>> {
 protected:
  Weights weights(uint64_t seed) const { return random_model(GetParam().second, seed, DType::bf16); }
};
INSTANTIATE_TEST_SUITE_P(, Family, testing::ValuesIn(family()), [](const auto& info) { return info.param.first; });

TEST_P(Family, SchedulesEqualPlainDecodingBitForBit) {
  const Weights w = weights(61);
  const uint64_t schedules = GetParam().second.linear_key_head_dim > 16 ? 2 : 6;  // wide heads take their time
  for (uint64_t seed = 0; seed < schedules; seed++)
    EXPECT_EQ(run_schedule(w, schedule_options(seed), seed, 24), "") << seed;
}

TEST_P(Family, DraftersChangeNothing) { expect_drafters_change_nothing(weights(62), {.threads = 2, .T = 5}, 100); }

// The specification computes the same model: every op, in double.
TEST_P(Family, AgreesWithTheReference) {
  const Weights w = weights(63);
  const std::vector<int32_t> prompt{5, 9, 2, 40, 31, 7, 7, 1, 0, 12, 33, 4};
  const auto logits = [&](const char* backend) {
    Rig rig(w, {.backend = backend});
    rig.start(prompt);
    const View<2> row = rig.stepper->logits();
    return std::vector<float>(row.f32(0), row.f32(0) + row.shape[1]);
  };
  const std::vector<float> want = logits("reference"), got = logits("cpu");
  double square = 0;
  for (const float x : want) square += double{x} * x;
  const double rms = std::sqrt(square / static_cast<double>(want.size()));
  ASSERT_GT(rms, 1e-3);
  for (size_t i = 0; i < want.size(); i++) EXPECT_NEAR(got[i], want[i], 1e-4 * rms) << i;
}

}  // namespace
}  // namespace deltaring::test
