// Damages valid files in thousands of fixed ways. Whatever the bytes are, the loader either gives a model whose tensors
// lie inside them or throws Error; run under the asan preset this also proves that nothing else is read.
#include <gtest/gtest.h>

#include <random>

#include "loader_testing.h"
#include "model/config.h"
#include "model/generation_config.h"
#include "model/random_weights.h"
#include "model/safetensors.h"
#include "model/weights.h"

namespace deltaring {
namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t n) { return static_cast<size_t>(random() % n); }

constexpr const char* kTokens[] = {"0",
                                   "-1",
                                   "1",
                                   "2",
                                   "7",
                                   "255",
                                   "65536",
                                   "2147483648",
                                   "9223372036854775807",
                                   "18446744073709551615",
                                   "1e308",
                                   "1e999",
                                   "0.5",
                                   "null",
                                   "true",
                                   "\"\"",
                                   "\"F32\"",
                                   "\"BF16\"",
                                   "\"I64\"",
                                   "\"F4\"",
                                   "[]",
                                   "{}",
                                   "[[",
                                   "\"",
                                   "\\",
                                   ",",
                                   ":",
                                   "]",
                                   "}"};

// One random edit among the first `reach` bytes.
void damage(std::string& text, size_t reach, Random& random) {
  const size_t at = below(random, std::max<size_t>(reach, 1));
  if (at >= text.size()) return;
  switch (below(random, 7)) {
    case 0:
      text[at] = static_cast<char>(text[at] ^ (1 << below(random, 8)));
      break;
    case 1:
      text[at] = static_cast<char>(random());
      break;
    case 2:
      text.erase(at, 1 + below(random, 9));
      break;
    case 3:
      text.insert(at, text.substr(below(random, text.size()), 1 + below(random, 40)));
      break;
    case 4:
      text.resize(at);
      break;
    default: {  // swap a whole JSON value for another, which keeps the text valid most of the time
      const size_t begin = text.find_first_of("0123456789\"tf[", at);
      if (begin == std::string::npos) return;
      const size_t end = std::min(text.find_first_of(",]}", begin), text.size());
      text.replace(begin, end - begin, kTokens[below(random, std::size(kTokens))]);
    }
  }
}

// Reads every byte that the source claims, so that a sanitizer sees it.
unsigned touch(const TensorSource& source) {
  unsigned sum = 0;
  for (const auto& name : source.names()) {
    const TensorRef& tensor = *source.find(name);
    const auto* bytes = static_cast<const unsigned char*>(tensor.data);
    for (size_t i = 0; i < tensor.bytes; i++) sum += bytes[i];
  }
  return sum;
}

ModelConfig small() { return parse_model_config(testing::small_config().dump(), "config.json"); }

TEST(LoaderFuzz, Safetensors) {
  const ModelConfig config = small();
  const RandomWeights random_weights(config, DType::bf16, 1);
  const std::string valid = testing::safetensors_of(random_weights, random_weights.names());
  const size_t header = 8 + static_cast<unsigned char>(valid[0]) + 256 * static_cast<unsigned char>(valid[1]);
  int loaded = 0, bound = 0, refused = 0;
  for (uint64_t seed = 0; seed < 3000; seed++) {
    Random random(seed);
    std::string text = valid;
    const size_t reach = seed % 4 == 0 ? text.size() : header;
    for (size_t edits = 1 + below(random, 3); edits > 0; edits--) damage(text, std::min(reach, text.size()), random);
    // Exactly as long as the file, so that a sanitizer sees one byte too far.
    const std::vector<std::byte> file(testing::as_bytes(text).begin(), testing::as_bytes(text).end());
    try {
      const auto source = std::make_shared<SafeTensors>(SafeTensors::from_bytes(file, "fuzz"));
      touch(*source);
      loaded++;
      non_finite(bind_weights(config, source));
      bound++;
    } catch (const Error&) {
      refused++;
    }
  }
  EXPECT_GT(loaded, 20);
  EXPECT_GT(bound, 20);
  EXPECT_GT(refused, 1000);
}

TEST(LoaderFuzz, Config) {
  const std::string nested = testing::json{
      {"model_type", "qwen3_5"},
      {"text_config", testing::small_config()},
      {"eos_token_id", {1, 2}}}.dump();
  testing::json experts = testing::small_config();
  experts.update({{"model_type", "qwen3_next"}, {"num_experts", 4}, {"num_experts_per_tok", 2}});
  experts.update({{"moe_intermediate_size", 6}, {"shared_expert_intermediate_size", 10}, {"mlp_only_layers", {1}}});
  experts["rope_parameters"].update({{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_fast", 32}});
  experts["quantization_config"] = {
      {"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"modules_to_not_convert", {"lm_head"}}};
  const std::string texts[] = {testing::small_config().dump(), nested, experts.dump()};
  int parsed = 0, refused = 0;
  for (uint64_t seed = 0; seed < 6000; seed++) {
    Random random(seed);
    std::string text = texts[seed % 3];
    for (size_t edits = 1 + below(random, 3); edits > 0; edits--) damage(text, text.size(), random);
    try {
      const ModelConfig config = parse_model_config(text, "fuzz");
      expected_tensors(config);
      to_string(config);
      parsed++;
    } catch (const Error&) {
      refused++;
    }
  }
  EXPECT_GT(parsed, 100);
  EXPECT_GT(refused, 1000);
}

TEST(LoaderFuzz, GenerationConfig) {
  const ModelConfig model = small();
  const std::string valid =
      R"({"eos_token_id": [1, 2], "do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.95})";
  int parsed = 0, refused = 0;
  for (uint64_t seed = 0; seed < 4000; seed++) {
    Random random(seed);
    std::string text = valid;
    for (size_t edits = 1 + below(random, 2); edits > 0; edits--) damage(text, text.size(), random);
    try {
      for (int64_t id : parse_generation_config(text, "fuzz", model).eos_token_id) ASSERT_LT(id, model.vocab_size);
      parsed++;
    } catch (const Error&) {
      refused++;
    }
  }
  EXPECT_GT(parsed, 100);
  EXPECT_GT(refused, 1000);
}

TEST(LoaderFuzz, ShardIndex) {
  const testing::ScratchFolder folder;
  const RandomWeights random_weights(small(), DType::bf16, 1);
  const auto names = random_weights.names();
  const std::vector<std::string> half(names.begin(), names.begin() + 8), rest(names.begin() + 8, names.end());
  folder.write("a.safetensors", testing::safetensors_of(random_weights, half));
  folder.write("b.safetensors", testing::safetensors_of(random_weights, rest));
  testing::json index;
  for (const auto& name : half) index["weight_map"][name] = "a.safetensors";
  for (const auto& name : rest) index["weight_map"][name] = "b.safetensors";
  int refused = 0;
  for (uint64_t seed = 0; seed < 500; seed++) {
    Random random(seed);
    std::string text = index.dump();
    damage(text, text.size(), random);
    folder.write("model.safetensors.index.json", text);
    try {
      touch(SafeTensors::open(folder.path()));
    } catch (const Error&) {
      refused++;
    }
  }
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace deltaring
