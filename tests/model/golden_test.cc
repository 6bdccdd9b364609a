// The forward against Hugging Face's: logits, states and greedy continuations of the models in tests/golden.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/golden.h"

namespace deltaring::test {
namespace {

struct Case {
  const char* backend;
  const char* golden;  // folder in tests/golden
  const char* model;   // folder of the weights
  size_t prompts;
};

class Golden : public testing::TestWithParam<Case> {};

TEST_P(Golden, LogitsOfEveryRow) {
  check_logits(GetParam().backend, GetParam().golden, GetParam().model, GetParam().prompts);
}
TEST_P(Golden, RecurrentStates) {
  check_states(GetParam().backend, GetParam().golden, GetParam().model, GetParam().prompts);
}
TEST_P(Golden, GreedyContinuation) {
  check_greedy(GetParam().backend, GetParam().golden, GetParam().model, GetParam().prompts);
}

std::string label(const testing::TestParamInfo<Case>& info) {
  std::string name = std::string(info.param.backend) + "_" + info.param.golden;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

constexpr const char* kTiny = "models/tiny-py";
constexpr const char* kDense = "tests/golden/rand-qwen3_5-dense";

INSTANTIATE_TEST_SUITE_P(All, Golden,
                         testing::Values(Case{"cpu", "tiny-py", kTiny, 3}, Case{"cpu", "rand-qwen3_5-dense", kDense, 3},
                                         Case{"reference", "rand-qwen3_5-dense", kDense, 2}),
                         label);

TEST(GoldenMtp, DraftsOfTheTrainedHead) { check_mtp("cpu", "tiny-py", kTiny); }

}  // namespace
}  // namespace deltaring::test
