// Sampling options and verify modes through the public API: with drafts they mean what they mean without.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/engine_testing.h"
#include "model/loader_testing.h"

namespace deltaring::test {
namespace {

using testing::ScratchFolder;

std::string refusal(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(EngineSampling, Field_G4_ABannedTokenNeverAppears) {
  for (const char* algorithm : {"none", "ngram", "suffix", "eagle"}) {
    Engine engine(engine_options(algorithm, 6));
    GenerateOptions g = greedy(24);
    const GenerateResult free = run(engine, kPrompts[1], g);
    for (int i = 0; i < 3; i++) {  // each time the token that came first is banned too
      g.logit_bias[run(engine, kPrompts[1], g).tokens[static_cast<size_t>(i)]] = -100;
    }
    const GenerateResult banned = run(engine, kPrompts[1], g);
    for (const auto& [id, bias] : g.logit_bias)
      EXPECT_EQ(std::count(banned.tokens.begin(), banned.tokens.end(), id), 0);
    g.speculate = false;
    expect_same(banned, run(engine, kPrompts[1], g), algorithm);
    EXPECT_NE(banned.tokens, free.tokens);
  }
}

TEST(EngineSampling, Field_G4_PenaltiesCountTheDraftsBeforeThem) {
  for (const char* algorithm : {"suffix", "eagle"}) {
    Engine engine(engine_options(algorithm, 8));
    int64_t accepted = 0;
    for (const auto& change : {+[](GenerateOptions& g) { g.repetition_penalty = 1.2f; },
                               +[](GenerateOptions& g) { g.presence_penalty = 0.6f; },
                               +[](GenerateOptions& g) { g.frequency_penalty = 0.4f; }}) {
      for (const char* prompt : kPrompts) {
        GenerateOptions g = greedy(32);
        change(g);
        const GenerateResult on = run(engine, prompt, g);
        g.speculate = false;
        expect_same(on, run(engine, prompt, g), algorithm);
        accepted += on.accepted;
      }
    }
    EXPECT_GT(accepted, 10) << algorithm;
  }
}

TEST(EngineSampling, Field_G5_OneLogprobForEveryToken) {
  for (const char* algorithm : {"none", "suffix", "eagle"}) {
    Engine engine(engine_options(algorithm, 8));
    for (const float temperature : {0.0f, 1.0f}) {
      GenerateOptions g = greedy(24);
      g.temperature = temperature, g.top_k = 20, g.top_p = 0.95f;
      EXPECT_TRUE(run(engine, kPrompts[0], g).logprobs.empty());
      g.logprobs = true, g.top_logprobs = 3;
      for (g.max_tokens = 1; g.max_tokens < 26; g.max_tokens += 8) {
        const GenerateResult r = run(engine, kPrompts[0], g);
        ASSERT_EQ(r.logprobs.size(), r.tokens.size()) << algorithm;
        ASSERT_EQ(r.top_logprobs.size(), r.tokens.size()) << algorithm;
        for (size_t i = 0; i < r.tokens.size(); i++) {
          ASSERT_EQ(r.top_logprobs[i].size(), 3u);
          EXPECT_LE(r.logprobs[i], r.top_logprobs[i][0].logprob);
          EXPECT_LE(r.logprobs[i], 0);
          if (temperature == 0) {
            EXPECT_EQ(r.top_logprobs[i][0].token, r.tokens[i]);
            EXPECT_EQ(r.top_logprobs[i][0].logprob, r.logprobs[i]);
          }
        }
        g.speculate = false;
        if (temperature == 0 || algorithm != std::string("eagle")) {
          EXPECT_EQ(run(engine, kPrompts[0], g).logprobs, r.logprobs) << algorithm;
        }
        g.speculate = true;
      }
    }
  }
}

TEST(EngineSampling, OutOfRangeIsRefusedByName) {
  Engine engine(engine_options("ngram"));
  const auto refused = [&](const auto& change) {
    GenerateOptions g = greedy(4);
    change(g);
    return refusal([&] { run(engine, kPrompts[0], g); });
  };
  EXPECT_NE(refused([](auto& g) { g.repetition_penalty = 0; }).find("repetition_penalty"), std::string::npos);
  EXPECT_NE(refused([](auto& g) { g.presence_penalty = 3; }).find("presence_penalty"), std::string::npos);
  EXPECT_NE(refused([](auto& g) { g.frequency_penalty = std::nanf(""); }).find("frequency_penalty"), std::string::npos);
  EXPECT_NE(refused([](auto& g) { g.logit_bias[1 << 20] = 1; }).find("logit_bias"), std::string::npos);
  EXPECT_NE(refused([](auto& g) { g.logit_bias[3] = -101; }).find("logit_bias"), std::string::npos);
  EXPECT_NE(refused([](auto& g) { g.logprobs = true, g.top_logprobs = -1; }).find("top_logprobs"), std::string::npos);
  EXPECT_EQ(run(engine, kPrompts[0], greedy(4)).tokens.size(), 4u) << "and works on";
}

TEST(EngineModes, KeepSpeculationExact) {
  Engine plain(engine_options("none"));
  int64_t drafted[3] = {};
  const char* const modes[] = {"static", "cap-accept", "compact"};
  for (size_t m = 0; m < 3; m++) {
    EngineOptions o = engine_options("suffix", 8);
    o.ragged_verify_mode = modes[m];
    Engine engine(o);
    EXPECT_EQ(engine.info().ragged_verify_mode, modes[m]);
    for (const char* prompt : kPrompts) {
      const GenerateResult r = run(engine, prompt, greedy(40));
      expect_same(r, run(plain, prompt, greedy(40)), modes[m]);
      expect_sane_statistics(r, 8, modes[m]);
      drafted[m] += r.drafted;
    }
  }
  EXPECT_LE(drafted[2], drafted[0]);
  EngineOptions o = engine_options("eagle", 8);
  o.speculative_adaptive = true;
  Engine adaptive(o);
  for (const char* prompt : kPrompts)
    expect_same(run(adaptive, prompt, greedy(40)), run(plain, prompt, greedy(40)), "");
}

TEST(EngineModes, CostsComeFromAFileToo) {
  const ScratchFolder folder;
  EngineOptions o = engine_options("suffix", 8);
  o.ragged_verify_mode = "compact";
  o.speculative_dspark_sps_table_path = (folder.path() / "table.json").string();
  const auto drafted = [&](const std::string& table) {
    folder.write("table.json", table);
    Engine engine(o);
    return run(engine, kPrompts[1], greedy(40)).drafted;
  };
  const int64_t cheap = drafted(R"({"sample_batch_tokens": [1, 8], "sample_steps_per_sec": [10, 9.9]})");
  const int64_t dear = drafted(R"({"sample_batch_tokens": [1, 8], "sample_steps_per_sec": [10, 0.1]})");
  EXPECT_GT(cheap, dear);
  for (const char* bad : {"", "{}", R"({"sample_batch_tokens": [1, 8], "sample_steps_per_sec": [10]})",
                          R"({"sample_batch_tokens": [8, 1], "sample_steps_per_sec": [1, 2]})",
                          R"({"sample_batch_tokens": [1], "sample_steps_per_sec": [0]})",
                          R"({"sample_batch_tokens": [1], "sample_steps_per_sec": ["fast"]})",
                          R"({"sample_batch_tokens": [0], "sample_steps_per_sec": [1]})"}) {
    EXPECT_FALSE(refusal([&] { drafted(bad); }).empty()) << bad;
  }
  const auto with_path = [&](const std::filesystem::path& path) {
    o.speculative_dspark_sps_table_path = path.string();
    return refusal([&] { Engine engine(o); });
  };
  EXPECT_NE(with_path(folder.path()).find("is a folder"), std::string::npos);
  EXPECT_NE(with_path(folder.path() / "nothing").find("there is no such file"), std::string::npos);
}

TEST(EngineModes, ImpossibleCombinationsNameTheModesThatWork) {
  for (const char* algorithm : {"none", "ngram", "eagle"}) {
    for (const char* mode : {"cap-accept", "compact"}) {
      EngineOptions o = engine_options(algorithm);
      o.ragged_verify_mode = mode;
      const std::string text = refusal([&] { Engine engine(o); });
      EXPECT_NE(text.find(mode), std::string::npos) << text;
      EXPECT_NE(text.find("static works"), std::string::npos) << text;
    }
  }
  EngineOptions o = engine_options("suffix");
  o.ragged_verify_mode = "dense";
  EXPECT_NE(refusal([&] { Engine engine(o); }).find("static, cap-accept and compact"), std::string::npos);
  o.ragged_verify_mode = "static", o.simulate_acceptance_length = 9;
  EXPECT_NE(refusal([&] { Engine engine(o); }).find("--simulate-acceptance-length 9"), std::string::npos);
}

}  // namespace
}  // namespace deltaring::test
