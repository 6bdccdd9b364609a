// inspect and plan of models with experts, interleaved projections and float8.
#include "cli/cli_testing.h"

namespace deltaring::test {
namespace {

// A golden model with a tokenizer beside it.
class GoldenFolder {
 public:
  explicit GoldenFolder(const std::string& name) {
    const std::filesystem::path from = std::filesystem::path(DELTARING_SOURCE_DIR) / "tests/golden" / name;
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::create_symlink(from / file, folder_.path() / file);
    }
    std::filesystem::create_symlink(tiny_py() / "tokenizer.json", folder_.path() / "tokenizer.json");
  }
  std::string path() const { return folder_.path().string(); }

 private:
  testing::ScratchFolder folder_;
};

json inspected(const std::string& folder) { return json::parse(cli({"inspect", "-m", folder, "--json"}).out); }

TEST(CliFamily, InspectShowsExpertsAndTheirPacking) {
  const GoldenFolder moe("rand-qwen3_5-moe"), next("rand-qwen3-next");
  const json a = inspected(moe.path()), b = inspected(next.path());
  EXPECT_EQ(a["model_type"], "qwen3_5_moe_text");
  EXPECT_EQ(a["experts"], (json{{"count", 8},
                                {"per_token", 2},
                                {"intermediate_size", 32},
                                {"shared_intermediate_size", 48},
                                {"layers", 3},
                                {"packing", "fused"}}));
  EXPECT_FALSE(a.contains("reordered_bytes"));
  EXPECT_EQ(b["model_type"], "qwen3_next");
  EXPECT_EQ(b["experts"]["packing"], "split");
  EXPECT_EQ(b["reordered_bytes"], 3 * (2 * 2 * 128 + 2 * 4 * 128 + 2 * 4) * 64 * 2);
  EXPECT_EQ(b["weights"]["bfloat16"]["tensors"], 154);
  const ProcessResult text = cli({"inspect", "-m", moe.path()});
  EXPECT_NE(text.out.find("experts    8 of 32 in 3 layers, 2 a token, and a shared one of 48; fused in the file"),
            std::string::npos)
      << text.out;
  ASSERT_EQ(a["mtp_head"], false);
  expect_refused(cli({"inspect", "-m", moe.path(), "--speculative-algorithm", "eagle"}),
                 {"--speculative-algorithm eagle", "no MTP head", "ngram works"}, "as plan does");
}

TEST(CliFamily, PlanCountsExpertsAndCodes) {
  const testing::ScratchFolder folder;
  json config = json::parse(
      testing::read_file(std::filesystem::path(DELTARING_SOURCE_DIR) / "tests/cli/qwen3.8-27b/config.json"));
  const auto weights_of = [&](const char* name, const json& c) {
    folder.write(name, c.dump());
    const std::string path = (folder.path() / name).string();
    const ProcessResult r = cli({"plan", "-m", path, "--json", "--memory", "4TiB", "--speculative-algorithm", "none"});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return json::parse(r.out)["replay"]["weight_bytes"].get<double>();
  };
  const double plain = weights_of("plain.json", config);
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"weight_block_size", {128, 128}},
                                   {"modules_to_not_convert", {"lm_head", "in_proj_a", "in_proj_b", "mtp.fc"}}};
  EXPECT_NEAR(weights_of("fp8.json", config) / plain, 0.55, 0.01);
  config.erase("quantization_config");
  json& text = config.contains("text_config") ? config["text_config"] : config;
  text["model_type"] = "qwen3_5_moe_text";
  if (config.contains("text_config")) config["model_type"] = "qwen3_5_moe";
  text.update({{"num_experts", 256}, {"num_experts_per_tok", 8}});
  text.update({{"moe_intermediate_size", 512}, {"shared_expert_intermediate_size", 512}});
  const double experts = 64.0 * 257 * 3 * 512 * 5120 * 2, dense = 64.0 * 3 * 17408 * 5120 * 2;
  EXPECT_NEAR(weights_of("moe.json", config), plain + experts - dense, 0.01 * plain);
}

TEST(CliFamily, OtherFamiliesAreRefusedByName) {
  for (const char* type : {"qwen4_exp", "qwen3_moe", "kimi_linear"}) {
    const ModelCopy copy;
    copy.edit_config([&](json& c) { c["model_type"] = type; });
    const ProcessResult r = cli({"generate", "-m", copy.path(), "-p", "x"});
    EXPECT_EQ(r.exit_code, 2);
    EXPECT_NE(r.err.find(std::string("model_type is ") + type), std::string::npos) << r.err;
    EXPECT_NE(r.err.find("qwen3_5_text, qwen3_5, qwen3_5_moe_text, qwen3_5_moe, qwen3_next"), std::string::npos)
        << r.err;
  }
}

}  // namespace
}  // namespace deltaring::test
