// `deltaring plan`: the table, its JSON, and what it answers when the plan does not fit.
#include "cli/cli_testing.h"
#include "deltaring/engine.h"

namespace deltaring::test {
namespace {

constexpr double kGiB = int64_t{1} << 30;

std::string path_27b() { return std::string(DELTARING_SOURCE_DIR) + "/tests/cli/qwen3.8-27b/config.json"; }

// The flags of the published comparison, where `words` (pairs of flag and value, then switches) does not say otherwise.
ProcessResult plan_27b(const Words& words) {
  Words all{"plan", "-m", path_27b()};
  for (const auto& [flag, value] : {std::pair{"--speculative-num-draft-tokens", "8"},
                                    {"--mamba-ssm-dtype", "bfloat16"},
                                    {"--linear-replayssm-record-dtype", "bfloat16"},
                                    {"--kv-cache-dtype", "bfloat16"}}) {
    if (std::find(words.begin(), words.end(), flag) == words.end()) all.insert(all.end(), {flag, value});
  }
  all.insert(all.end(), words.begin(), words.end());
  return cli(all);
}

json json_27b(const Words& words) {
  Words all = words;
  all.push_back("--json");
  const ProcessResult r = plan_27b(all);
  EXPECT_EQ(lines(r.out).size(), 1u) << r.out << r.err;
  return json::parse(r.out);
}

double gib(const json& bytes) { return bytes.get<double>() / kGiB; }

// 72.6 GiB of snapshots against a published ring of 3.04 GiB; ours holds twice as many tokens in it.
TEST(CliPlan, PublishedComparison) {
  const json out = json_27b({"--memory", "288GiB", "--max-running-requests", "129"});
  EXPECT_NEAR(gib(out["snapshot"]["snapshot_bytes"]), 72.6, 0.05);
  EXPECT_NEAR(gib(out["replay"]["record_bytes"]), 3.04, 0.06);
  EXPECT_NEAR(gib(out["replay"]["checkpoint_bytes"]), 129 * 72.0 / 1024, 1e-6);
  EXPECT_EQ(out["T"], 8);
  EXPECT_EQ(out["gamma"], 7);
  EXPECT_EQ(out["R"], 32);
  EXPECT_EQ(out["drafter"], "eagle");
  EXPECT_EQ(out["replay"]["kv_bytes_per_token"], 17 * 4096);
  EXPECT_EQ(out["fits"], true);
  EXPECT_TRUE(out["works"].empty());
  EXPECT_GT(out["replay"]["kv_tokens"], 1.3 * out["snapshot"]["kv_tokens"].get<double>());
  EXPECT_GT(out["replay"]["max_requests"], 3 * out["snapshot"]["max_requests"].get<int64_t>());
}

TEST(CliPlan, TheTableHasBothSides) {
  const ProcessResult r = plan_27b({"--memory", "288GiB", "--max-running-requests", "129"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.err, "");
  for (const char* line :
       {"48 GDN, 16 full attention", "129 requests .*T=8 \\(anchor \\+ gamma=7 drafts\\)", "replay +snapshot",
        "weights +[0-9.]+ GiB +[0-9.]+ GiB", "drafter .* MTP head", "scratch ", "checkpoints +9.07 GiB +9.07 GiB",
        "rings +3.09 GiB +- .*R=32", "snapshots +- +72.56 GiB", "conv inputs ", "KV a token +68.0 KiB +68.0 KiB",
        "KV tokens that fit +[0-9,]+ +[0-9,]+", "requests that fit +[0-9,]+ +[0-9]+ ", "fits +yes +yes"}) {
    EXPECT_TRUE(std::regex_search(r.out, std::regex(line))) << line << "\n" << r.out;
  }
  for (const std::string& line : lines(r.out)) EXPECT_LE(line.size(), 120u) << line;
}

// What README.md shows is what the command prints.
TEST(CliPlan, ReadmeIsReal) {
  const ProcessResult r = plan_27b({"--memory", "288GiB", "--max-running-requests", "129"});
  const std::string readme = read_file(std::string(DELTARING_SOURCE_DIR) + "/README.md");
  std::vector<std::string> shown = lines(r.out);
  ASSERT_GT(shown.size(), 10u);
  shown.erase(shown.begin());  // names the file
  for (const std::string& line : shown) EXPECT_NE(readme.find("\n" + line + "\n"), std::string::npos) << line;
}

// The parts are the whole, and what is left is KV.
TEST(CliPlan, SumsAddUp) {
  const json out = json_27b({"--memory", "200GiB", "--max-running-requests", "64"});
  for (const char* rollback : {"replay", "snapshot"}) {
    const json& side = out[rollback];
    int64_t sum = 0;
    for (const char* part : {"weight_bytes", "drafter_bytes", "scratch_bytes", "checkpoint_bytes", "record_bytes",
                             "snapshot_bytes", "conv_bytes"}) {
      sum += side[part].get<int64_t>();
    }
    EXPECT_NEAR(side["bytes_before_kv"].get<double>(), static_cast<double>(sum), 4096) << rollback;
    const int64_t rest = out["memory_bytes"].get<int64_t>() - side["bytes_before_kv"].get<int64_t>();
    const int64_t page = 64 * side["kv_bytes_per_token"].get<int64_t>();
    EXPECT_LE(side["kv_bytes"], rest) << rollback;
    EXPECT_GT(side["kv_bytes"], rest - page) << rollback;
    EXPECT_EQ(side["kv_tokens"].get<int64_t>() % 64, 0);
  }
}

TEST(CliPlan, EveryWayThatIsNamedWorks) {
  struct Case {
    Words words;
    std::string first;
  };
  const Case cases[] = {{{"--memory", "144GB", "--max-running-requests", "128", "--state-rollback", "snapshot"},
                         "--max-running-requests"},
                        {{"--memory", "66GB", "--max-running-requests", "100"}, "--max-running-requests"},
                        {{"--memory", "64GiB", "--context-length", "262144"}, "--context-length"},
                        {{"--memory", "24g"}, "--memory"}};
  for (const auto& [words, first] : cases) {
    const ProcessResult r = plan_27b(words);
    EXPECT_EQ(r.exit_code, 2) << r.out;
    EXPECT_NE(r.out.find("weights"), std::string::npos) << "the table shows what takes the memory";
    EXPECT_TRUE(std::regex_match(r.err, std::regex("error: [^\n]*each of these works: " + first + " [^\n]+\n")))
        << r.err;
    Words with_json = words;
    with_json.push_back("--json");
    const ProcessResult as_json = plan_27b(with_json);
    EXPECT_EQ(as_json.exit_code, 2);
    EXPECT_EQ(as_json.err, r.err);
    const json out = json::parse(as_json.out);
    EXPECT_EQ(out["fits"], false);
    ASSERT_FALSE(out["works"].empty()) << words[1];
    for (const std::string way : out["works"]) {
      EXPECT_NE(r.err.find(way), std::string::npos) << r.err;
      const std::string flag = way.substr(0, way.find(' ')), value = way.substr(way.find(' ') + 1);
      Words again = words;
      const auto at = std::find(again.begin(), again.end(), flag);
      if (at == again.end())
        again.insert(again.end(), {flag, value});
      else
        *(at + 1) = value;
      const ProcessResult better = plan_27b(again);
      EXPECT_EQ(better.exit_code, 0) << way << "\n" << better.err;
    }
  }
}

TEST(CliPlan, MemoryIsReadAsItIsWritten) {
  const std::pair<const char*, double> cases[] = {{"288GiB", 288 * kGiB},
                                                  {"288GB", 288e9},
                                                  {"288g", 288 * kGiB},
                                                  {"288Gi", 288 * kGiB},
                                                  {"0.5TiB", 512 * kGiB},
                                                  {"300000m", 300000.0 * (1 << 20)},
                                                  {"309237645312", 309237645312.0},
                                                  {"288 gib", 288 * kGiB}};
  for (const auto& [text, bytes] : cases)
    EXPECT_EQ(json_27b({"--memory", text})["memory_bytes"].get<double>(), bytes) << text;
  for (const char* text :
       {"0", "-5GiB", "many", "12parsecs", "GiB", "nan", "inf", "1e30", "9999999TiB", "24GiB!", "0.1"}) {
    expect_refused(plan_27b({"--memory", text}), {"--memory", text, "24GiB works"}, text);
  }
}

// A folder with its weights is planned by them, as the engine does.
TEST(CliPlan, AgreesWithTheEngine) {
  for (const char* rollback : {"replay", "snapshot"}) {
    const ProcessResult r = on_tiny("plan", {"--json", "--state-rollback", rollback, "--context-length", "512",
                                             "--speculative-num-draft-tokens", "5"});
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const json out = json::parse(r.out);
    EngineOptions o;
    o.model = tiny_py().string(), o.threads = 1, o.context_length = 512, o.state_rollback = rollback;
    o.speculative_algorithm = "eagle", o.speculative_num_draft_tokens = 5;
    const Engine engine(o);
    const EngineInfo& info = engine.info();
    const json& side = out[rollback];
    EXPECT_EQ(side["checkpoint_bytes"], info.checkpoint_bytes);
    EXPECT_EQ(side["record_bytes"], info.record_bytes);
    EXPECT_EQ(side["conv_bytes"], info.conv_bytes);
    EXPECT_EQ(side["kv_bytes_per_token"], info.kv_bytes_per_token);
    EXPECT_EQ(out["snapshot"]["state_bytes_per_request"], info.snapshot_bytes);
    EXPECT_NEAR(side["weight_bytes"].get<double>() + side["drafter_bytes"].get<double>(),
                static_cast<double>(info.weight_bytes), 0.02 * static_cast<double>(info.weight_bytes));
  }
}

// A drafter is chosen by what the model has; a config.json, a folder with it alone and a whole folder all do.
TEST(CliPlan, ReadsFoldersAndConfigs) {
  const ScratchFolder folder;
  folder.write("config.json", read_file(tiny_py() / "config.json"));
  const auto plan = [&](const std::string& model, const Words& more = {}) {
    Words words{"plan", "-m", model, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return cli(words);
  };
  const json whole = json::parse(plan(tiny_py().string()).out);
  for (const std::string& model : {folder.path().string(), (folder.path() / "config.json").string()}) {
    const json out = json::parse(plan(model).out);
    EXPECT_EQ(out["replay"]["kv_bytes_per_token"], whole["replay"]["kv_bytes_per_token"]);
    EXPECT_NEAR(out["replay"]["weight_bytes"].get<double>() / whole["replay"]["weight_bytes"].get<double>(), 1, 0.01);
  }
  json config = json::parse(read_file(tiny_py() / "config.json"));
  config["mtp_num_hidden_layers"] = 0;
  folder.write("config.json", config.dump());
  const std::string without = folder.path().string();
  EXPECT_EQ(json::parse(plan(without).out)["drafter"], "ngram");
  expect_refused(plan(without, {"--speculative-algorithm", "eagle"}), {"eagle", "ngram works"}, "no head");
  expect_refused(plan("no/such/folder"), {"no/such/folder"}, "no folder");
  folder.write("config.json", "{\"model_type\": ");
  expect_refused(plan((folder.path() / "config.json").string()), {"config.json"}, "no JSON");
}

TEST(CliPlan, RefusesWhatTheEngineWould) {
  const std::pair<const char*, const char*> cases[] = {
      {"--max-running-requests", "0"}, {"--max-running-requests", "-1"}, {"--max-running-requests", "99999999"},
      {"--state-rollback", "undo"},    {"--context-length", "262145"},   {"--linear-replayssm-cache-len", "24"}};
  for (const auto& [flag, value] : cases) {
    expect_refused(plan_27b({flag, value, "--memory", "288GiB"}), {flag, value, "works"}, flag);
  }
}

}  // namespace
}  // namespace deltaring::test
