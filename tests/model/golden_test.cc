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
constexpr const char* kMoe = "tests/golden/rand-qwen3_5-moe";
constexpr const char* kNext = "tests/golden/rand-qwen3-next";

INSTANTIATE_TEST_SUITE_P(All, Golden,
                         testing::Values(Case{"cpu", "tiny-py", kTiny, 3}, Case{"cpu", "rand-qwen3_5-dense", kDense, 3},
                                         Case{"cpu", "rand-qwen3_5-moe", kMoe, 3},
                                         Case{"cpu", "rand-qwen3-next", kNext, 3},
                                         Case{"reference", "rand-qwen3_5-dense", kDense, 2},
                                         Case{"reference", "rand-qwen3_5-moe", kMoe, 1},
                                         Case{"reference", "rand-qwen3-next", kNext, 1}),
                         label);

TEST(GoldenMtp, DraftsOfTheTrainedHead) { check_mtp("cpu", "tiny-py", kTiny); }

// A context stretched by YaRN: frequencies, amplitude and what comes of them (tools/make_yarn_golden.py).
TEST(GoldenYarn, FrequenciesAndLogits) {
  using nlohmann::json;
  const std::filesystem::path folder = source_dir() / kDense;
  const json golden = json::parse(std::ifstream(folder / "yarn.json"));
  json document = json::parse(std::ifstream(folder / "config.json"));
  document["rope_parameters"] = golden["rope_parameters"];
  const ModelConfig config = parse_model_config(document.dump(), "yarn");
  ASSERT_TRUE(config.yarn);
  const std::vector<double> inv_freq = golden["inv_freq"];
  const std::vector<double> frequency = yarn_frequencies(config.rotary_dim, config.rope_theta, *config.yarn);
  ASSERT_EQ(frequency.size(), inv_freq.size());
  for (size_t i = 0; i < frequency.size(); i++) EXPECT_NEAR(frequency[i], inv_freq[i], 1e-6 * inv_freq[i]) << i;
  EXPECT_NEAR(config.yarn->attention_factor, golden["attention_scaling"].get<double>(), 1e-9);
  for (const char* backend : {"cpu", "reference"}) {
    Rig rig(load_weights(folder, config), {.backend = backend, .threads = 2, .prefill_chunk = 256});
    const size_t prompts = backend == std::string("cpu") ? golden["last_logits"].size() : 1;
    for (size_t i = 0; i < prompts; i++) {
      const std::vector<float> want = golden["last_logits"][i];
      const Sequence s = rig.start(GoldenFile("rand-qwen3_5-dense").ids(i));
      const double bound = kRelativeToRms * rms(want.data(), static_cast<int64_t>(want.size()));
      for (size_t id = 0; id < want.size(); id++)
        ASSERT_NEAR(*rig.stepper->logits().f32(0, static_cast<int64_t>(id)), want[id], bound) << backend << " " << i;
      rig.pool.free(s.seat);
    }
  }
}

}  // namespace
}  // namespace deltaring::test
