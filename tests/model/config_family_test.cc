// config.json of models with experts, interleaved projections, stretched contexts and float8.
#include <gtest/gtest.h>

#include <cmath>

#include "config_testing.h"

namespace deltaring {
namespace {

using testing::changed;
using testing::expect_error;
using testing::json;
using testing::parameters;
using testing::parse;
using testing::published;
using testing::Refusal;
using testing::small_config;

json moe_config(const json& change = json::object()) {
  json document = changed({{"model_type", "qwen3_5_moe_text"},
                           {"intermediate_size", nullptr},
                           {"num_experts", 4},
                           {"num_experts_per_tok", 2},
                           {"moe_intermediate_size", 6},
                           {"shared_expert_intermediate_size", 10}});
  document.merge_patch(change);
  return document;
}

TEST(Config, MixtureOfExperts) {
  const ModelConfig c = parse(moe_config());
  EXPECT_EQ(c.model_type, "qwen3_5_moe_text");
  EXPECT_EQ(c.num_experts, 4);
  EXPECT_EQ(c.num_experts_per_tok, 2);
  EXPECT_EQ(c.moe_intermediate_size, 6);
  EXPECT_EQ(c.shared_expert_intermediate_size, 10);
  EXPECT_EQ(c.intermediate_size, 0);
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_TRUE(c.has_experts(0) && c.has_experts(1));
  EXPECT_FALSE(c.interleaved_gdn());
  json text = moe_config();
  EXPECT_EQ(parse({{"model_type", "qwen3_5_moe"}, {"text_config", text}}).num_experts, 4);
  EXPECT_NE(to_string(c).find("num_experts_per_tok             2"), std::string::npos) << to_string(c);
}

TEST(Config, Qwen3Next) {
  json document = moe_config({{"model_type", "qwen3_next"},
                              {"num_hidden_layers", 6},
                              {"intermediate_size", 12},
                              {"decoder_sparse_step", 2},
                              {"mlp_only_layers", {3}},
                              {"norm_topk_prob", false},
                              {"mtp_num_hidden_layers", nullptr}});
  const ModelConfig c = parse(document);
  EXPECT_TRUE(c.interleaved_gdn());
  EXPECT_FALSE(c.norm_topk_prob);
  EXPECT_EQ(c.mtp_num_hidden_layers, 1);  // its files have a head, its config does not say so
  const std::vector<bool> experts = {false, true, false, false, false, true};
  for (int64_t i = 0; i < 6; i++) EXPECT_EQ(c.has_experts(i), experts[static_cast<size_t>(i)]) << i;
  document["intermediate_size"] = nullptr;
  expect_error(ErrorKind::corrupt, {"intermediate_size is missing"}, [&] { parse(document); });
  document["num_experts"] = 0, document["intermediate_size"] = 12;
  EXPECT_FALSE(parse(document).has_experts(1));
}

TEST(Config, PublishedMoesHaveTheirPublishedSizes) {
  const auto moe = [](json document, int experts, int chosen, int width) {
    document.erase("intermediate_size");
    document["model_type"] = "qwen3_5_moe_text";
    document["num_experts"] = experts, document["num_experts_per_tok"] = chosen;
    document["moe_intermediate_size"] = document["shared_expert_intermediate_size"] = width;
    document["tie_word_embeddings"] = false;
    return document;
  };
  EXPECT_EQ(parameters(parse(moe(published(8192, 92, 128, 64, 4, 1), 512, 10, 2048)), ""), 2'446'182'725'504);
  json next = moe(published(2048, 48, 32, 16, 2, 1), 512, 10, 512);
  next["model_type"] = "qwen3_next", next["vocab_size"] = 151936, next["eos_token_id"] = 151643;
  next.erase("mtp_num_hidden_layers");
  EXPECT_EQ(parameters(parse(next), ""), 81'324'862'720);
}

TEST(Config, RefusesExpertsThatCannotBe) {
  const std::vector<Refusal> refusals = {
      {{{"num_experts", nullptr}}, ErrorKind::corrupt, {"num_experts is missing"}},
      {{{"num_experts", 0}}, ErrorKind::corrupt, {"num_experts is 0", "1 to 4096"}},
      {{{"num_experts_per_tok", 5}}, ErrorKind::corrupt, {"num_experts_per_tok is 5", "1 to 4"}},
      {{{"moe_intermediate_size", nullptr}}, ErrorKind::corrupt, {"moe_intermediate_size is missing"}},
      {{{"shared_expert_intermediate_size", 0}}, ErrorKind::corrupt, {"shared_expert_intermediate_size is 0"}},
      {{{"norm_topk_prob", false}}, ErrorKind::unsupported, {"norm_topk_prob is false", "true"}},
      {{{"mlp_only_layers", {0}}}, ErrorKind::unsupported, {"mlp_only_layers is [0]"}},
      {{{"num_experts", 4096}, {"moe_intermediate_size", 10000}}, ErrorKind::unsupported, {"4096 times", "10000"}},
      {{{"num_experts", 4096}, {"num_hidden_layers", 1000}}, ErrorKind::unsupported, {"4096 times", "1000"}},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.change.dump());
    expect_error(refusal.kind, refusal.parts, [&] { parse(moe_config(refusal.change)); });
  }
}

TEST(Config, YarnInEitherSpelling) {
  const json options = {{"factor", 4.0}, {"original_max_position_embeddings", 32}};
  json newer = options, older = options;
  newer.update({{"rope_type", "yarn"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.25}});
  older["type"] = "yarn";
  const std::vector<ModelConfig> configs = {
      parse(changed({{"rope_parameters", newer}})),
      parse(changed({{"rope_parameters", nullptr}, {"rope_theta", 10000.0}, {"rope_scaling", older}}))};
  for (const ModelConfig& c : configs) {
    ASSERT_TRUE(c.yarn);
    EXPECT_EQ(c.yarn->factor, 4);
    EXPECT_EQ(c.yarn->original_max_position_embeddings, 32);
    EXPECT_EQ(c.yarn->beta_fast, 32);
    EXPECT_EQ(c.yarn->beta_slow, 1);
    EXPECT_NEAR(c.yarn->attention_factor, 0.1 * std::log(4) + 1, 1e-15);
    EXPECT_EQ(c.max_position_embeddings, 128);
    EXPECT_EQ(c.rotary_dim, 2);
    EXPECT_EQ(c.rope_theta, 10000);
  }
  newer.update({{"attention_factor", 1.5}, {"mscale", 1}, {"beta_fast", 16}, {"truncate", false}});
  const ModelConfig given = parse(changed({{"rope_parameters", newer}}));
  EXPECT_EQ(given.yarn->attention_factor, 1.5);
  EXPECT_EQ(given.yarn->beta_fast, 16);
  EXPECT_FALSE(given.yarn->truncate);
  newer.update({{"attention_factor", nullptr}, {"mscale_all_dim", 0.5}});
  const ModelConfig scaled = parse(changed({{"rope_parameters", newer}}));
  EXPECT_NEAR(scaled.yarn->attention_factor, (0.1 * std::log(4) + 1) / (0.05 * std::log(4) + 1), 1e-15);
  newer.erase("original_max_position_embeddings");
  EXPECT_EQ(parse(changed({{"rope_parameters", newer}})).max_position_embeddings, 4 * 64);
}

json fp8(const json& change = json::object()) {
  json quantization = {{"quant_method", "fp8"},
                       {"fmt", "e4m3"},
                       {"activation_scheme", "dynamic"},
                       {"weight_block_size", {128, 128}},
                       {"modules_to_not_convert", {"lm_head", "mlp.gate", "model.language_model.layers.1.self_attn"}}};
  quantization.merge_patch(change);
  return {{"quantization_config", quantization}};
}

TEST(Config, BlockFp8) {
  const ModelConfig c = parse(changed(fp8()));
  ASSERT_TRUE(c.fp8);
  EXPECT_TRUE(c.fp8->converts("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_TRUE(c.fp8->converts("model.layers.11.self_attn.q_proj.weight"));
  EXPECT_TRUE(c.fp8->converts("mtp.layers.0.self_attn.q_proj.weight"));
  EXPECT_FALSE(c.fp8->converts("lm_head.weight"));
  EXPECT_FALSE(c.fp8->converts("model.layers.0.mlp.gate.weight"));
  EXPECT_FALSE(c.fp8->converts("model.layers.1.self_attn.q_proj.weight"));
  EXPECT_FALSE(c.fp8->converts("model.language_model.layers.1.self_attn.q_proj.weight"));
  json nested = fp8();
  nested.update({{"model_type", "qwen3_5"}, {"text_config", small_config()}});
  EXPECT_TRUE(parse(nested).fp8);
}

TEST(Config, RefusesOtherQuantisation) {
  const std::vector<Refusal> refusals = {
      {{{"quant_method", "modelopt"}}, ErrorKind::unsupported, {"quant_method is modelopt", "supported: fp8"}},
      {{{"quant_method", "compressed-tensors"}}, ErrorKind::unsupported, {"quant_method is compressed-tensors"}},
      {{{"fmt", "e5m2"}}, ErrorKind::unsupported, {"fmt is e5m2", "e4m3"}},
      {{{"activation_scheme", "static"}}, ErrorKind::unsupported, {"activation_scheme is static", "dynamic"}},
      {{{"weight_block_size", nullptr}}, ErrorKind::unsupported, {"weight_block_size is not given", "[128, 128]"}},
      {{{"weight_block_size", {64, 128}}}, ErrorKind::unsupported, {"weight_block_size is [64,128]"}},
      {{{"scale_fmt", "ue8m0"}}, ErrorKind::unsupported, {"scale_fmt is ue8m0"}},
      {{{"expert_dtype", "fp4"}}, ErrorKind::unsupported, {"expert_dtype is fp4"}},
      {{{"modules_to_not_convert", "lm_head"}}, ErrorKind::corrupt, {"modules_to_not_convert is \"lm_head\"", "list"}},
      {{{"modules_to_not_convert", {3}}}, ErrorKind::corrupt, {"modules_to_not_convert holds 3"}},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.change.dump());
    expect_error(refusal.kind, refusal.parts, [&] { parse(changed(fp8(refusal.change))); });
  }
}

}  // namespace
}  // namespace deltaring
