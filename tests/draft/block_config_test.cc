// What a drafter's config.json is taken for, and which drafters are refused and why.
#include "draft/block_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "support/block_drafters.h"

namespace deltaring::test {
namespace {

using nlohmann::json;

json golden_config(const std::string& name) {
  return json::parse(std::ifstream(drafter_goldens() / name / "config.json"));
}

BlockConfig parse(const json& config) { return parse_block_config(config.dump(), "drafter/config.json"); }

std::string refusal(const std::function<void()>& call, ErrorKind kind) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    return error.what();
  }
  return "accepted";
}

TEST(BlockConfig, KindsAndRowsAreToldByFields) {
  struct Want {
    const char* name;
    BlockKind kind;
    bool first_row_predicts;
    int64_t drafts;
  };
  for (const Want& want :
       {Want{"dflash", BlockKind::dflash, false, 7}, Want{"dflash-swa", BlockKind::dflash, false, 5},
        Want{"dflash-deepspec", BlockKind::dflash, true, 5}, Want{"dflash-speculators", BlockKind::dflash, false, 6},
        Want{"dspark-vanilla", BlockKind::dspark, true, 7},
        Want{"dspark-gated-speculators", BlockKind::dspark, false, 5}, Want{"dspark-rnn", BlockKind::dspark, true, 4},
        Want{"dflash2", BlockKind::dflash2, false, 7}, Want{"dflash2-speculators", BlockKind::dflash2, false, 4}}) {
    json config = golden_config(want.name);
    for (const bool named : {true, false}) {
      if (!named) config.erase("architectures");
      const BlockConfig c = parse(config);
      EXPECT_EQ(c.kind(), want.kind) << want.name;
      EXPECT_EQ(c.first_row_predicts, want.first_row_predicts) << want.name;
      EXPECT_EQ(c.drafts(), want.drafts) << want.name;
      EXPECT_EQ(c.window(), want.drafts + 1) << want.name;
    }
  }
  json dspark = golden_config("dspark-rnn");
  dspark["dflash_config"]["sample_from_anchor"] = false;
  EXPECT_FALSE(parse(dspark).first_row_predicts) << "an explicit field wins";
}

// is_causal, then dflash_config.causal, then the kind of the layer.
TEST(BlockConfig, CausalityInItsOrder) {
  const auto causal = [](const json& config) {
    std::vector<bool> list;
    for (const BlockAttention& layer : parse(config).layers) list.push_back(layer.causal);
    return list;
  };
  using List = std::vector<bool>;
  json config = golden_config("dflash-swa");
  EXPECT_EQ(causal(config), (List{true, false}));
  config["dflash_config"]["causal"] = false;
  EXPECT_EQ(causal(config), (List{false, false}));
  config["is_causal"] = true;
  EXPECT_EQ(causal(config), (List{true, true}));
  config["layer_types"] = nullptr, config["is_causal"] = nullptr, config["dflash_config"].erase("causal");
  config["dflash_config"]["use_swa"] = true;
  EXPECT_EQ(causal(config), (List{false, false}));
  EXPECT_EQ(parse(config).layers[1].window, 12);
  json speculators = golden_config("dflash-speculators");
  EXPECT_EQ(causal(speculators), (List{false, false}));
  speculators.erase("sliding_window_non_causal");
  EXPECT_EQ(causal(speculators), (List{true, false}));
}

TEST(BlockConfig, TapsAreLayersOfTheTarget) {
  EXPECT_EQ(parse(golden_config("dflash-speculators")).target_layer_ids, (std::vector<int64_t>{-1, 2}))
      << "speculators counts from the embedding";
  const auto spread = [](int64_t draft_layers, int64_t target_layers) {
    json config = golden_config("dflash-swa");
    config["num_hidden_layers"] = draft_layers, config["num_target_layers"] = target_layers;
    config["layer_types"] = std::vector<std::string>(draft_layers, "full_attention");
    BlockConfig c = parse(config);
    ModelConfig target = golden_target_config();
    target.num_hidden_layers = target_layers;
    fit_to_target(c, target);
    return c.target_layer_ids;
  };
  EXPECT_EQ(spread(5, 36), (std::vector<int64_t>{1, 9, 17, 25, 33}));
  EXPECT_EQ(spread(5, 64), (std::vector<int64_t>{1, 16, 31, 46, 61}));
  EXPECT_EQ(spread(1, 36), (std::vector<int64_t>{18}));
}

// The published configs of the family, as far as they fit.
TEST(BlockConfig, Qwen38Of27B) {
  json config = golden_config("dflash2");
  config.update({{"hidden_size", 5120},
                 {"intermediate_size", 17408},
                 {"vocab_size", 248320},
                 {"head_dim", 128},
                 {"num_attention_heads", 32},
                 {"num_key_value_heads", 8},
                 {"num_hidden_layers", 5},
                 {"num_target_layers", 64},
                 {"sliding_window", 2048},
                 {"rope_theta", 1e7},
                 {"is_causal", false}});
  config["layer_types"] = std::vector<std::string>(5, "sliding_attention");
  config["dflash_config"] = {{"block_size", 8},
                             {"conv_group_size", 16},
                             {"conv_kernel_size", 2},
                             {"mask_token_id", 248070},
                             {"selector_rank", 256},
                             {"selector_top_k", 16},
                             {"target_layer_ids", {5, 19, 33, 47, 61}}};
  int64_t parameters = 0;
  const std::vector<TensorSpec> tensors = expected_tensors(parse(config));
  for (const TensorSpec& tensor : tensors) {
    int64_t size = 1;
    for (const int64_t extent : tensor.shape) size *= extent;
    parameters += size;
  }
  EXPECT_EQ(tensors.size(), 81u);
  EXPECT_EQ(parameters, 1924404480);
}

TEST(BlockConfig, YarnInEitherSpelling) {
  const BlockConfig flat = parse(golden_config("dspark-yarn"));
  json nested = golden_config("dspark-gated-speculators");
  nested["transformer_layer_config"]["rope_parameters"] = {
      {"type", "yarn"}, {"factor", 32}, {"original_max_position_embeddings", 8192}, {"rope_theta", 1e4}};
  for (const BlockConfig& c : {flat, parse(nested)}) {
    ASSERT_TRUE(c.yarn);
    EXPECT_EQ(c.rope_theta, 1e4);
    EXPECT_EQ(c.yarn->factor, 32);
    EXPECT_EQ(c.yarn->original_max_position_embeddings, 8192);
    EXPECT_EQ(c.yarn->attention_factor, yarn_attention_factor(32));
  }
  EXPECT_FALSE(parse(golden_config("dflash")).yarn);
}

TEST(BlockConfig, RefusesByName) {
  struct Case {
    const char* base;
    std::function<void(json&)> spoil;
    ErrorKind kind;
    const char* says;
  };
  const ErrorKind corrupt = ErrorKind::corrupt, unsupported = ErrorKind::unsupported;
  const Case cases[] = {
      {"dflash", [](json& c) { c.erase("dflash_config"); }, unsupported, "no block drafter"},
      {"dflash", [](json& c) { c["dflash_config"].erase("mask_token_id"); }, corrupt, "mask_token_id is missing"},
      {"dflash", [](json& c) { c["dflash_config"]["mask_token_id"] = 96; }, corrupt, "mask_token_id is 96"},
      {"dflash", [](json& c) { c["dflash_config"]["block_size"] = 7; }, corrupt, "make them equal"},
      {"dflash", [](json& c) { c["dflash_config"]["projector_type"] = "domino"; }, unsupported, "projector_type"},
      {"dflash", [](json& c) { c["block_size"] = 1; }, corrupt, "drafts nothing"},
      {"dflash", [](json& c) { c["hidden_act"] = "gelu"; }, unsupported, "hidden_act is gelu"},
      {"dflash", [](json& c) { c["attention_bias"] = true; }, unsupported, "attention_bias"},
      {"dflash",
       [](json& c) {
         c["rope_scaling"] = {{"rope_type", "longrope"}};
       },
       unsupported, "rope_scaling: rope_type is longrope"},
      {"dflash",
       [](json& c) {
         c["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4}};
       },
       corrupt, "original_max_position_embeddings is missing"},
      {"dspark-yarn", [](json& c) { c["rope_scaling"]["factor"] = 0.5; }, corrupt, "factor is 0.5"},
      {"dspark-yarn", [](json& c) { c["rope_scaling"]["partial_rotary_factor"] = 0.5; }, unsupported,
       "partial_rotary_factor is 0.5"},
      {"dspark-yarn",
       [](json& c) {
         c["rope_parameters"] = {{"rope_type", "default"}};
       },
       corrupt, "make them equal"},
      {"dflash-speculators",
       [](json& c) {
         c["transformer_layer_config"]["rope_parameters"] = {{"sliding_attention", {{"rope_theta", 1e4}}}};
       },
       unsupported, "sliding_attention"},
      {"dflash", [](json& c) { c["head_dim"] = 15; }, unsupported, "head_dim is 15"},
      {"dflash", [](json& c) { c["num_attention_heads"] = 3; }, unsupported, "num_attention_heads is 3"},
      {"dflash-swa", [](json& c) { c.erase("sliding_window"); }, corrupt, "sliding_window is missing"},
      {"dflash-swa", [](json& c) { c["layer_types"] = {"full_attention"}; }, corrupt, "layer_types"},
      {"dflash-swa", [](json& c) { c["layer_types"][0] = "chunked"; }, unsupported, "chunked"},
      {"dspark-rnn", [](json& c) { c["markov_head_type"] = "lstm"; }, unsupported, "markov_head_type is lstm"},
      {"dspark-rnn", [](json& c) { c["markov_rank"] = 0; }, corrupt, "confidence_head_with_markov"},
      {"dspark-rnn", [](json& c) { c["dspark_block_size"] = 5; }, unsupported, "bundled with its target"},
      {"dflash2", [](json& c) { c["dflash_config"]["conv_group_size"] = 5; }, corrupt, "conv_group_size is 5"},
      {"dflash2", [](json& c) { c["markov_rank"] = 8; }, unsupported, "selector_rank with markov_rank"},
      {"dflash2-speculators", [](json& c) { c["draft_vocab_size"] = 50; }, unsupported, "draft_vocab_size"},
      {"dflash-speculators", [](json& c) { c["speculators_model_type"] = "eagle3"; }, unsupported, "eagle3"},
      {"dflash-speculators", [](json& c) { c["shift_label"] = true; }, unsupported, "shift_label"},
      {"dflash-speculators", [](json& c) { c.erase("transformer_layer_config"); }, corrupt, "transformer_layer_config"},
      {"dflash-speculators", [](json& c) { c.erase("aux_hidden_state_layer_ids"); }, corrupt,
       "aux_hidden_state_layer_ids is missing"},
      {"dflash-speculators", [](json& c) { c["target_hidden_size"] = 64; }, unsupported, "target_hidden_size"},
  };
  for (const Case& c : cases) {
    json config = golden_config(c.base);
    EXPECT_NO_THROW(parse(config)) << c.base;
    c.spoil(config);
    EXPECT_THAT(refusal([&] { parse(config); }, c.kind), ::testing::HasSubstr(c.says)) << c.base;
  }
  EXPECT_THAT(refusal([&] { parse_block_config("{", "x"); }, corrupt), ::testing::HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal([&] { load_block_config("/nowhere"); }, ErrorKind::not_found), ::testing::HasSubstr("/nowhere"));
}

TEST(BlockConfig, DraftersOfAnotherTargetAreRefused) {
  const auto fit = [](const std::function<void(ModelConfig&)>& change) {
    return refusal(
        [&] {
          BlockConfig c = parse(golden_config("dflash"));
          ModelConfig target = golden_target_config();
          change(target);
          fit_to_target(c, target);
        },
        ErrorKind::unsupported);
  };
  EXPECT_EQ(fit([](ModelConfig&) {}), "accepted");
  EXPECT_THAT(fit([](ModelConfig& t) { t.vocab_size = 97; }), ::testing::HasSubstr("vocab_size 96, this one has 97"));
  EXPECT_THAT(fit([](ModelConfig& t) { t.hidden_size = 64; }), ::testing::HasSubstr("hidden_size 32, this one has 64"));
  EXPECT_THAT(fit([](ModelConfig& t) { t.num_hidden_layers = 7; }), ::testing::HasSubstr("num_target_layers 6"));
  json config = golden_config("dflash");
  config.erase("num_target_layers");
  config["dflash_config"]["target_layer_ids"] = {0, 5};
  BlockConfig last = parse(config);
  EXPECT_THAT(refusal([&] { fit_to_target(last, golden_target_config()); }, ErrorKind::unsupported),
              ::testing::HasSubstr("taps target layer 5, possible are -1 to 4"));
}

// Whatever the text is, it is refused with Error or gives a config that can be used.
TEST(BlockConfig, DamagedTextIsRefusedOrUsable) {
  std::mt19937_64 random(11);
  const char* pieces[] = {"0",  "-1", "1", "9223372036854775807", "1e308", "0.5", "null", "true", "\"\"",
                          "[]", "{}", ","};
  int64_t usable = 0;
  for (const char* name : kGoldenDrafters) {
    const std::string good = golden_config(name).dump();
    for (int i = 0; i < 300; i++) {
      std::string text = good;
      const size_t at = random() % text.size(), length = 1 + random() % 8;
      text.replace(at, length, random() % 2 ? pieces[random() % std::size(pieces)] : "");
      try {
        BlockConfig c = parse_block_config(text, "damaged");
        fit_to_target(c, golden_target_config());
        EXPECT_GE(expected_tensors(c).size(), c.layers.size() * 11 + 3);
        EXPECT_TRUE(c.drafts() >= 1 && c.mask_token_id < c.vocab_size) << text;
        usable++;
      } catch (const Error&) {
      }
    }
  }
  EXPECT_GT(usable, 10);
}

struct Edited : testing::EditedSource {
  explicit Edited(SafeTensors tensors) : EditedSource(tensors), file(std::move(tensors)) {}
  SafeTensors file;  // keeps their memory
};

TEST(BlockWeights, TensorsMustFitTheConfig) {
  const auto bind = [](const std::string& name, const std::function<void(Edited&)>& edit, ErrorKind kind) {
    return refusal(
        [&] {
          BlockConfig config = load_block_config(drafter_goldens() / name);
          fit_to_target(config, golden_target_config());
          const auto source = std::make_shared<Edited>(SafeTensors::open(drafter_goldens() / name));
          edit(*source);
          bind_block_weights(config, source);
        },
        kind);
  };
  const ErrorKind corrupt = ErrorKind::corrupt, unsupported = ErrorKind::unsupported;
  EXPECT_EQ(bind(
                "dflash", [](Edited&) {}, corrupt),
            "accepted");
  EXPECT_THAT(bind(
                  "dflash", [](Edited& s) { s.tensors.erase("fc.weight"); }, corrupt),
              ::testing::HasSubstr("fc.weight is missing"));
  EXPECT_THAT(bind(
                  "dflash",
                  [](Edited& s) {
                    s.tensors["fc.weight"].shape = {32, 64};
                  },
                  corrupt),
              ::testing::HasSubstr("fc.weight has shape [32, 64], expected [32, 96]"));
  EXPECT_THAT(bind(
                  "dflash", [](Edited& s) { s.tensors["layers.2.mlp.up_proj.weight"] = {}; }, corrupt),
              ::testing::HasSubstr("layers.2.mlp.up_proj.weight is unexpected"));
  EXPECT_THAT(bind(
                  "dflash", [](Edited& s) { s.tensors["norm.weight"].foreign_dtype = "F8_E4M3"; }, unsupported),
              ::testing::HasSubstr("norm.weight has element type F8_E4M3"));
  EXPECT_THAT(bind(
                  "dflash-swa", [](Edited& s) { s.tensors.erase("layers.1.self_attn.attention_sink_bias"); }, corrupt),
              ::testing::HasSubstr("layers.1.self_attn.attention_sink_bias is missing"));
  EXPECT_THAT(bind(
                  "dflash-speculators", [](Edited& s) { s.tensors["d2t"].foreign_dtype = "I32"; }, corrupt),
              ::testing::HasSubstr("d2t is not of element type I64"));
  static const std::vector<int64_t> far(64, 90);
  EXPECT_THAT(bind(
                  "dflash-speculators", [](Edited& s) { s.tensors["d2t"].data = far.data(); }, corrupt),
              ::testing::HasSubstr("d2t[6] is 90, which leads out of the target's 96 ids"));
  static std::vector<int64_t> twice(64, 0);
  twice[7] = -1;
  EXPECT_THAT(bind(
                  "dflash-speculators", [](Edited& s) { s.tensors["d2t"].data = twice.data(); }, corrupt),
              ::testing::HasSubstr("d2t[7] leads to the target's id 6, as another does"));
  // Other names for the projection of the taps, and copies of the target's tensors that are skipped with a notice.
  EXPECT_EQ(bind(
                "dflash",
                [](Edited& s) {
                  s.tensors["model.encoder.fc.weight"] = s.tensors["fc.weight"];
                  s.tensors["model.encoder.output_norm_enc.weight"] = s.tensors["hidden_norm.weight"];
                  s.tensors.erase("fc.weight"), s.tensors.erase("hidden_norm.weight");
                  s.tensors["model.embed_tokens.weight"] = {}, s.tensors["lm_head.weight"] = {};
                },
                corrupt),
            "accepted");
  EXPECT_THAT(golden_drafter("dflash-speculators", golden_target_config()).notices,
              ::testing::ElementsAre(::testing::HasSubstr("2 copies of the target's tensors are skipped")));
}

}  // namespace
}  // namespace deltaring::test
