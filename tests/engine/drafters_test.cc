// Block drafters through the engine: a folder beside the model's, whatever it drafts the output is plain output, and
// folders that cannot work are refused by name.
#include <gtest/gtest.h>

#include "engine/engine_testing.h"
#include "model/loader_testing.h"
#include "support/block_drafters.h"

namespace deltaring::test {
namespace {

using nlohmann::json;

// A random drafter of tiny-py, block of T, as a folder.
struct DrafterFolder {
  explicit DrafterFolder(const std::string& kind, int64_t T = 6) {
    const ModelConfig target = load_model_config(kTinyPy);
    const BlockWeights weights = random_block(kind, target, T, 3);
    const BlockConfig& c = weights.config;
    config = {{"hidden_size", c.hidden_size},
              {"intermediate_size", c.intermediate_size},
              {"vocab_size", c.vocab_size},
              {"num_attention_heads", c.num_attention_heads},
              {"num_key_value_heads", c.num_key_value_heads},
              {"head_dim", c.head_dim},
              {"num_hidden_layers", c.layers.size()},
              {"layer_types", {"sliding_attention", "full_attention"}},
              {"sliding_window", c.layers[0].window},
              {"rope_theta", c.rope_theta},
              {"block_size", c.block_size},
              {"dflash_config", {{"mask_token_id", c.mask_token_id}, {"target_layer_ids", c.target_layer_ids}}}};
    if (c.conv_kernel_size > 0) {
      config["dflash_config"].update({{"conv_kernel_size", c.conv_kernel_size},
                                      {"conv_group_size", c.conv_group_size},
                                      {"selector_rank", c.selector_rank},
                                      {"selector_top_k", c.selector_top_k}});
    }
    if (c.markov_rank > 0) {
      const char* heads[] = {"vanilla", "gated", "rnn"};
      config.update({{"markov_rank", c.markov_rank},
                     {"markov_head_type", heads[static_cast<size_t>(c.markov_head)]},
                     {"enable_confidence_head", true},
                     {"confidence_head_with_markov", true}});
    }
    folder.write("model.safetensors", testing::safetensors_of(*weights.source, weights.source->names()));
    save();
  }
  void save() const { folder.write("config.json", config.dump()); }
  EngineOptions options(const std::string& algorithm = "none", int64_t T = 0) const {
    EngineOptions o = engine_options(algorithm, T);
    o.speculative_draft_model_path = folder.path().string();
    return o;
  }

  testing::ScratchFolder folder;
  json config;
};

TEST(Drafters, OutputIsPlainOutputBitForBit) {
  Engine plain(engine_options("none"));
  std::vector<GenerateResult> want;
  for (const char* prompt : kPrompts) want.push_back(run(plain, prompt, greedy(20)));
  for (const char* kind : kRandomBlocks) {
    const DrafterFolder drafter(kind);
    for (const int64_t T : {0, 3}) {
      Engine engine(drafter.options("none", T));
      EXPECT_TRUE(std::string(kind).starts_with(engine.info().drafter)) << engine.info().drafter;
      EXPECT_EQ(engine.info().T, T ? T : 6) << "the whole block where nothing is said";
      for (size_t i = 0; i < std::size(kPrompts); i++) {
        const std::string where = fmt::format("{} T {} prompt {}", kind, T, i);
        GenerateOptions o = greedy(20);
        const GenerateResult got = run(engine, kPrompts[i], o);
        expect_same(got, want[i], where);
        expect_sane_statistics(got, engine.info().T, where);
        EXPECT_GT(got.drafted, 15) << where;
        o.speculate = false;
        expect_same(run(engine, kPrompts[i], o), want[i], where + " plain");
      }
    }
  }
}

// The drafters that were trained for tiny-py, in models/.
TEST(Drafters, TrainedOnesSaveSteps) {
  Engine plain(engine_options("none"));
  for (const char* name : {"tiny-py-dflash", "tiny-py-dspark"}) {
    EngineOptions o = engine_options("none", 0);
    o.speculative_draft_model_path = std::string(DELTARING_SOURCE_DIR "/models/") + name;
    Engine engine(o);
    EXPECT_EQ(engine.info().T, 8) << name;
    int64_t tokens = 0, steps = 0;
    for (const char* prompt : kPrompts) {
      const GenerateResult got = run(engine, prompt, greedy(64));
      expect_same(got, run(plain, prompt, greedy(64)), name);
      tokens += got.step_tokens, steps += got.verify_steps;
    }
    EXPECT_GT(static_cast<double>(tokens), 1.8 * static_cast<double>(steps)) << name;
  }
}

TEST(Drafters, SampledOutputIsAFunctionOfTheSeed) {
  for (const char* kind : {"dflash", "dflash2", "dspark-rnn"}) {
    const DrafterFolder drafter(kind);
    Engine engine(drafter.options());
    GenerateOptions o = greedy(24);
    o.temperature = 1, o.top_p = 0.95f, o.top_k = 20, o.seed = 7;
    expect_same(run(engine, kPrompts[0], o), run(engine, kPrompts[0], o), kind);
  }
}

TEST(Drafters, WhatCannotWorkIsRefusedByName) {
  const auto refused = [](const EngineOptions& o, const std::string& says) {
    try {
      Engine engine(o);
      ADD_FAILURE() << says << " was taken";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << e.what();
    }
  };
  DrafterFolder drafter("dflash");
  refused(engine_options("dflash"), "--speculative-draft-model-path DIR");
  refused(drafter.options("eagle"), "--speculative-algorithm eagle: the drafter in");
  refused(drafter.options("dspark"), "is dflash; dflash works");
  refused(drafter.options("dflash", 7), "--speculative-num-draft-tokens 7: the drafter in");
  EngineOptions nowhere = drafter.options();
  nowhere.speculative_draft_model_path = "nowhere";
  refused(nowhere, "drafter folder nowhere holds no config.json");
  const json good = drafter.config;
  const auto spoiled = [&](const std::function<void(json&)>& spoil, const std::string& says) {
    drafter.config = good;
    spoil(drafter.config);
    drafter.save();
    refused(drafter.options(), says);
  };
  spoiled([](json& c) { c["vocab_size"] = 4097; }, "vocab_size 4097, this one has 4096");
  spoiled([](json& c) { c["hidden_size"] = 128; }, "hidden_size 128, this one has 256");
  spoiled([](json& c) { c["num_target_layers"] = 9; }, "num_target_layers 9, this one has 8");
  spoiled([](json& c) { c["dflash_config"]["target_layer_ids"] = {7}; }, "taps target layer 7");
  spoiled([](json& c) { c["dflash_config"]["mask_token_id"] = 4096; }, "mask_token_id is 4096");
  spoiled([](json& c) { c["dflash_config"]["target_layer_ids"] = {1}; }, "fc.weight has shape");
  spoiled([](json& c) { c["markov_rank"] = 4; }, "markov_head.markov_w1.weight is missing");
}

}  // namespace
}  // namespace deltaring::test
