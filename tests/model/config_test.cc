#include "model/config.h"

#include <gtest/gtest.h>

#include "config_testing.h"
#include "model/generation_config.h"

namespace deltaring {
namespace {

using testing::changed;
using testing::expect_error;
using testing::json;
using testing::parameters;
using testing::parse;
using testing::published;
using testing::Refusal;
using testing::ScratchFolder;
using testing::small_config;

TEST(Config, TinyPy) {
  const ModelConfig c = load_model_config(testing::tiny_py());
  EXPECT_EQ(c.hidden_size, 256);
  EXPECT_EQ(c.intermediate_size, 512);
  EXPECT_EQ(c.vocab_size, 4096);
  EXPECT_EQ(c.num_hidden_layers, 8);
  EXPECT_EQ(c.count(LayerKind::full_attention), 2);
  EXPECT_EQ(c.layer_types[3], LayerKind::full_attention);
  EXPECT_EQ(c.layer_types[7], LayerKind::full_attention);
  EXPECT_EQ(c.rotary_dim, 16);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_EQ(c.conv_dim(), 2 * 2 * 128 + 6 * 128);
  EXPECT_EQ(c.tie_word_embeddings, true);
  EXPECT_EQ(c.mtp_num_hidden_layers, 1);
  EXPECT_EQ(c.eos_token_id, std::vector<int64_t>{4064});
  EXPECT_TRUE(c.notices.empty());
}

TEST(Config, PublishedFlat08B) {
  json document = published(1024, 24, 16, 8, 2, 3584);
  document["tie_word_embeddings"] = true;
  const ModelConfig c = parse(document);
  EXPECT_EQ(c.count(LayerKind::gdn), 18);
  EXPECT_EQ(c.count(LayerKind::full_attention), 6);
  EXPECT_EQ(c.layer_types.back(), LayerKind::full_attention);
  EXPECT_EQ(c.conv_dim(), 6144);
  EXPECT_EQ(c.rotary_dim, 64);
  EXPECT_EQ(c.dtype, DType::bf16);
  EXPECT_EQ(c.mamba_ssm_dtype, DType::f32);
}

TEST(Config, PublishedNested27B) {
  json text = published(5120, 64, 48, 24, 4, 17408);
  text["output_gate_type"] = "swish";
  text["partial_rotary_factor"] = 0.25;
  const json document = {{"model_type", "qwen3_5"},
                         {"architectures", {"Qwen3_5ForConditionalGeneration"}},
                         {"tie_word_embeddings", false},
                         {"text_config", text},
                         {"vision_config", {{"depth", 27}}}};
  const ModelConfig c = parse(document);
  EXPECT_EQ(c.count(LayerKind::gdn), 48);
  EXPECT_EQ(c.conv_dim(), 10240);
  EXPECT_EQ(c.tie_word_embeddings, false);
  EXPECT_EQ(c.eos_token_id, std::vector<int64_t>{248044});
  ASSERT_EQ(c.notices.size(), 1u);
  EXPECT_NE(c.notices[0].find("vision_config"), std::string::npos);
  EXPECT_EQ(2 * parameters(c, "mtp."), 849'398'784);  // the published bytes of its MTP layer in bf16
}

TEST(Config, Published9BHasThePublishedSize) {
  json document = published(4096, 32, 32, 16, 4, 12288);
  document["tie_word_embeddings"] = false;
  document["mtp_num_hidden_layers"] = 0;
  EXPECT_EQ(parameters(parse(document), ""), 8'953'803'264);
}

TEST(Config, LayerTypesWinOverTheInterval) {
  const ModelConfig c = parse(changed({{"layer_types", {"full_attention", "linear_attention"}}}));
  EXPECT_EQ(c.layer_types, (std::vector{LayerKind::full_attention, LayerKind::gdn}));
  const ModelConfig d = parse(changed({{"num_hidden_layers", 8}, {"full_attention_interval", nullptr}}));
  EXPECT_EQ(d.layer_types[3], LayerKind::full_attention);
  EXPECT_EQ(d.count(LayerKind::full_attention), 2);
}

TEST(Config, OldRopeStyle) {
  const ModelConfig c =
      parse(changed({{"rope_parameters", nullptr}, {"rope_theta", 5e5}, {"partial_rotary_factor", 0.5}}));
  EXPECT_EQ(c.rope_theta, 5e5);
  EXPECT_EQ(c.rotary_dim, 4);
}

TEST(Config, TieIsFoundInEitherPlace) {
  EXPECT_EQ(parse(changed({{"tie_word_embeddings", nullptr}})).tie_word_embeddings, std::nullopt);
  EXPECT_EQ(parse(changed({{"tie_word_embeddings", false}})).tie_word_embeddings, false);
  json nested = {{"model_type", "qwen3_5"}, {"text_config", small_config()}};
  EXPECT_EQ(parse(nested).tie_word_embeddings, true);
  EXPECT_TRUE(parse(nested).notices.empty());
  nested["tie_word_embeddings"] = false;
  expect_error(ErrorKind::corrupt, {"tie_word_embeddings is false, but true in text_config"}, [&] { parse(nested); });
}

TEST(Config, HarmlessKeysAreIgnored) {
  const json harmless = {{"mlp_only_layers", json::array()}, {"router_aux_loss_coef", 0.1},  {"language_model_only", 3},
                         {"use_sliding_window", false},      {"sliding_window", 4096},       {"num_experts", 0},
                         {"output_gate_type", "silu"},       {"attn_output_gate", true},     {"unheard_of", {{"a", 1}}},
                         {"quantization_config", nullptr},   {"transformers_version", "5.0"}};
  EXPECT_EQ(to_string(parse(changed(harmless))), to_string(parse(small_config())));
}

TEST(Config, PrintsEveryField) {
  const json document = small_config();
  const std::string text = to_string(parse(document));
  for (const auto& [key, value] : document.items()) {
    const bool derived = key == "full_attention_interval" || key == "rope_parameters";
    EXPECT_TRUE(derived || text.find(key) != std::string::npos) << key;
  }
}

TEST(Config, RefusesByName) {
  constexpr auto unsupported = ErrorKind::unsupported, corrupt = ErrorKind::corrupt;
  const std::vector<Refusal> refusals = {
      {{{"model_type", "qwen4_exp"}},
       unsupported,
       {"model_type is qwen4_exp", "qwen3_5_text, qwen3_5, qwen3_5_moe_text, qwen3_5_moe, qwen3_next"}},
      {{{"model_type", "llama"}}, unsupported, {"model_type is llama", "qwen3_next"}},
      {{{"model_type", "qwen3_5_moe"}}, corrupt, {"model_type is qwen3_5_moe, but text_config is missing"}},
      {{{"model_type", nullptr}}, unsupported, {"model_type is not given"}},
      {{{"model_type", "qwen3_5"}}, corrupt, {"text_config is missing"}},
      {{{"hidden_act", "gelu"}}, unsupported, {"hidden_act is gelu", "supported: silu"}},
      {{{"attention_bias", true}}, unsupported, {"attention_bias is true", "false"}},
      {{{"output_gate_type", "sigmoid"}}, unsupported, {"output_gate_type is sigmoid", "swish, silu"}},
      {{{"attn_output_gate", false}}, unsupported, {"attn_output_gate is false", "true"}},
      {{{"mtp_use_dedicated_embeddings", true}}, unsupported, {"mtp_use_dedicated_embeddings is true"}},
      {{{"rope_parameters", {{"rope_type", "llama3"}}}}, unsupported, {"rope_type is llama3", "default, yarn"}},
      {{{"rope_scaling", {{"type", "linear"}}}}, unsupported, {"rope_scaling: rope_type is linear"}},
      {{{"rope_scaling", {{"type", "yarn"}}}}, corrupt, {"rope_type is default in rope_parameters, but yarn in"}},
      {{{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 0.5}}}}, corrupt, {"factor is 0.5", "at least 1"}},
      {{{"rope_parameters", {{"rope_type", "yarn"}, {"factor", "4"}}}}, corrupt, {"factor is \"4\""}},
      {{{"mlp_only_layers", {1}}}, unsupported, {"mlp_only_layers is [1]"}},
      {{{"num_experts", 8}}, unsupported, {"num_experts is 8", "qwen3_5_moe_text or qwen3_next"}},
      {{{"quantization_config", {{"bits", 4}}}},
       unsupported,
       {"quant_method is not given", "supported: fp8", "bfloat16"}},
      {{{"use_sliding_window", true}}, unsupported, {"sliding_window"}},
      {{{"sliding_window", 512}}, unsupported, {"sliding_window is 512"}},
      {{{"layer_types", {"linear_attention", "sliding_attention"}}}, unsupported, {"sliding_attention"}},
      {{{"layer_types", {"linear_attention"}}}, corrupt, {"layer_types", "2 layers"}},
      {{{"linear_num_value_heads", 5}}, unsupported, {"linear_num_value_heads is 5", "1, 2, 3, 4 or 8"}},
      {{{"linear_num_key_heads", 4}}, unsupported, {"linear_num_value_heads is 2", "linear_num_key_heads, 4"}},
      {{{"num_key_value_heads", 4}}, unsupported, {"num_attention_heads is 2", "multiple of num_key_value_heads, 4"}},
      {{{"mamba_ssm_dtype", "float8"}}, unsupported, {"mamba_ssm_dtype is float8", "float32, bfloat16, float16"}},
      {{{"dtype", "int8"}}, unsupported, {"dtype is int8"}},
      {{{"head_dim", 20}}, unsupported, {"rotates 5 of head_dim 20"}},
      {{{"head_dim", 4}}, unsupported, {"rotates 1 of head_dim 4"}},
      {{{"partial_rotary_factor", 0.5}}, corrupt, {"partial_rotary_factor is 0.5, but 0.25"}},
      {{{"rope_parameters", {{"partial_rotary_factor", 1.5}}}}, corrupt, {"partial_rotary_factor is 1.5"}},
      {{{"rope_parameters", {{"rope_theta", nullptr}}}}, corrupt, {"rope_theta is missing"}},
      {{{"rope_parameters", {{"rope_theta", 0}}}}, corrupt, {"rope_theta is 0"}},
      {{{"rope_parameters", 3}}, corrupt, {"rope_parameters: expected an object"}},
      {{{"mtp_num_hidden_layers", 2}}, corrupt, {"mtp_num_hidden_layers is 2", "0 to 1"}},
      {{{"linear_conv_kernel_dim", 1}}, corrupt, {"linear_conv_kernel_dim is 1"}},
      {{{"rms_norm_eps", 0}}, corrupt, {"rms_norm_eps is 0"}},
      {{{"eos_token_id", 16}}, corrupt, {"eos_token_id is 16", "0 to 15"}},
      {{{"eos_token_id", {1, "x"}}}, corrupt, {"eos_token_id is \"x\""}},
      {{{"tie_word_embeddings", "yes"}}, corrupt, {"tie_word_embeddings is \"yes\"", "true or false"}},
      {{{"hidden_act", 7}}, corrupt, {"hidden_act is 7", "string"}},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.change.dump());
    expect_error(refusal.kind, refusal.parts, [&] { parse(changed(refusal.change)); });
  }
}

TEST(Config, RefusesImpossibleSizes) {
  for (const char* key :
       {"hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
        "linear_value_head_dim", "linear_conv_kernel_dim", "max_position_embeddings"}) {
    for (const json& value : {json(0), json(-1), json(INT64_MAX), json(UINT64_MAX), json(1.5), json("8"), json(true)}) {
      SCOPED_TRACE(key + std::string(" = ") + value.dump());
      expect_error(ErrorKind::corrupt, {std::string(key) + " is " + value.dump(), "expected a whole number"}, [&] {
        parse(changed({{key, value}}));
      });
    }
    expect_error(ErrorKind::corrupt, {std::string(key) + " is missing"}, [&] { parse(changed({{key, nullptr}})); });
  }
}

TEST(Config, TheLargestAcceptedModelStaysInInt64) {
  const json largest = {{"hidden_size", 1 << 20},
                        {"intermediate_size", 1 << 22},
                        {"vocab_size", 1 << 24},
                        {"num_hidden_layers", 1024},
                        {"num_attention_heads", 4096},
                        {"num_key_value_heads", 4096},
                        {"head_dim", 4096},
                        {"linear_num_key_heads", 4096},
                        {"linear_num_value_heads", 4096},
                        {"linear_key_head_dim", 4096},
                        {"linear_value_head_dim", 4096},
                        {"linear_conv_kernel_dim", 16},
                        {"tie_word_embeddings", false}};
  int64_t total = 0;
  bool overflow = false;
  for (const TensorSpec& spec : expected_tensors(parse(changed(largest)))) {
    int64_t bytes = 4;
    for (int64_t dim : spec.shape) overflow |= __builtin_mul_overflow(bytes, dim, &bytes);
    overflow |= __builtin_add_overflow(total, bytes, &total);
  }
  EXPECT_FALSE(overflow);
}

TEST(Config, BadJsonNamesFileAndByte) {
  expect_error(ErrorKind::corrupt, {"config.json: not valid JSON at byte 19 of 20: ',' cannot stand there; a whole"},
               [] { parse_model_config("{\"hidden_size\": 1,,}", "config.json"); });
  expect_error(ErrorKind::corrupt, {"not valid JSON at byte 1 of 0: it is empty"},
               [] { parse_model_config("", "config.json"); });
  expect_error(ErrorKind::corrupt, {"expected an object"}, [] { parse_model_config("[1]", "config.json"); });
  expect_error(ErrorKind::corrupt, {"not usable JSON"}, [] { parse_model_config("{\"a\":1e999}", "config.json"); });
  expect_error(ErrorKind::corrupt, {"\"model_type\" occurs twice"},
               [] { parse_model_config(R"({"model_type":"a","model_type":"b"})", "config.json"); });
  expect_error(ErrorKind::corrupt, {"nested deeper than 64"},
               [] { parse_model_config(std::string(100000, '['), "config.json"); });
}

TEST(Config, MissingFilesAreExplained) {
  const ScratchFolder folder;
  expect_error(ErrorKind::not_found, {"holds no config.json", "tokenizer.json"},
               [&] { load_model_config(folder.path()); });
  expect_error(ErrorKind::not_found, {"absent", "does not exist", "a model folder holds config.json"},
               [&] { load_model_config(folder.path() / "absent"); });
  folder.write("model.gguf", "x");
  expect_error(ErrorKind::invalid_argument, {"model.gguf is a file", "a model folder holds"},
               [&] { load_model_config(folder.path() / "model.gguf"); });
}

TEST(GenerationConfig, TinyPy) {
  const ModelConfig model = load_model_config(testing::tiny_py());
  const GenerationConfig c = load_generation_config(testing::tiny_py(), model);
  EXPECT_EQ(c.eos_token_id, (std::vector<int64_t>{4066, 4064}));
  EXPECT_TRUE(c.do_sample);
  EXPECT_EQ(c.temperature, 1);
  EXPECT_EQ(c.top_k, 20);
  EXPECT_EQ(c.top_p, 0.95);
}

TEST(GenerationConfig, FallsBackToTheModel) {
  const ModelConfig model = load_model_config(testing::rand_dense());
  const GenerationConfig absent = load_generation_config(testing::rand_dense(), model);
  EXPECT_EQ(absent.eos_token_id, std::vector<int64_t>{511});
  EXPECT_EQ(absent.top_k, 0);
  const GenerationConfig silent = parse_generation_config(R"({"do_sample": false})", "g", model);
  EXPECT_EQ(silent.eos_token_id, std::vector<int64_t>{511});
  EXPECT_FALSE(silent.do_sample);
  EXPECT_EQ(parse_generation_config(R"({"eos_token_id": 7, "temperature": 0})", "g", model).eos_token_id,
            std::vector<int64_t>{7});
}

TEST(GenerationConfig, RefusesImpossibleValues) {
  const ModelConfig model = load_model_config(testing::rand_dense());
  for (const auto& [bad, part] :
       std::vector<std::pair<std::string, std::string>>{{R"({"eos_token_id": 512})", "eos_token_id is 512"},
                                                        {R"({"temperature": -1})", "temperature is -1"},
                                                        {R"({"top_k": -2})", "top_k is -2"},
                                                        {R"({"top_p": 0})", "top_p is 0"},
                                                        {R"({"top_p": 1.5})", "top_p is 1.5"},
                                                        {R"({"do_sample": 1})", "do_sample is 1"},
                                                        {"{", "not valid JSON at byte 2"}}) {
    expect_error(ErrorKind::corrupt, {"g: ", part}, [&, text = bad] { parse_generation_config(text, "g", model); });
  }
}

}  // namespace
}  // namespace deltaring
