#include "cli/cli_testing.h"

namespace deltaring::test {
namespace {

std::string line(const char* category, const char* text) {
  return json({{"question_id", 1}, {"category", category}, {"turns", {text, "second turn"}}}).dump() + "\n";
}

class BenchSpec : public ::testing::Test {
 protected:
  BenchSpec() {
    folder_.write("prompts.jsonl",
                  line("code", "def add(a, b):\n") + "\n" + line("code", "x = [1, 2,") + line("text", "The"));
  }
  std::string file(const char* name = "prompts.jsonl") const { return (folder_.path() / name).string(); }
  ProcessResult bench(Words words) const {
    words.insert(words.begin(), {"--prompts", file(), "-n", "24", "--temperature", "0", "--ignore-eos"});
    return on_tiny("bench-spec", words);
  }
  ScratchFolder folder_;
};

TEST_F(BenchSpec, ReportsByCategoryAndDrafter) {
  const std::string svg = file("plot.svg");
  const ProcessResult r = bench({"--drafter", "none,suffix,eagle", "--json", "--svg", svg});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const json out = json::parse(r.out);
  ASSERT_EQ(out["runs"].size(), 3u);
  EXPECT_EQ(out["concurrency"], 1);
  for (const json& run : out["runs"]) {
    EXPECT_EQ(run["categories"].size(), 2u);
    EXPECT_EQ(run["categories"]["code"]["requests"], 2);
    EXPECT_EQ(run["overall"]["requests"], 3);
    EXPECT_EQ(run["overall"]["completion_tokens"], 3 * 24);
    for (const json& t : {run["overall"], run["categories"]["code"], run["categories"]["text"]}) {
      const double steps = t["verify_steps"], tokens = t["step_tokens"], length = t["acceptance_length"];
      EXPECT_DOUBLE_EQ(length, tokens / steps);
      EXPECT_EQ(t["step_tokens"].get<int64_t>(), t["accepted"].get<int64_t>() + t["verify_steps"].get<int64_t>());
      EXPECT_NEAR(t["steps_per_second"].get<double>() * length, t["decode_tokens_per_second"].get<double>(), 1e-6);
      EXPECT_LE(length, run["T"].get<double>());
    }
  }
  EXPECT_EQ(out["runs"][0]["overall"]["acceptance_length"], 1);
  EXPECT_EQ(out["runs"][0]["overall"]["acceptance_length_request_mean"], 1);
  EXPECT_GT(out["runs"][2]["overall"]["acceptance_length"], 1.5);
  EXPECT_EQ(out["runs"][2]["overall"]["per_position_acceptance_rates"].size(), 3u);
  const std::string plot = read_file(svg);
  EXPECT_TRUE(plot.starts_with("<svg") && plot.ends_with("</svg>\n"));
  for (const char* word : {"eagle, T=4", "code", "overall"}) EXPECT_NE(plot.find(word), std::string::npos) << word;
}

TEST_F(BenchSpec, PrintsATable) {
  const ProcessResult r = bench({"--drafter", "ngram", "--category", "text"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(std::regex_search(r.out, std::regex("ngram +text +1 +24 +[1-9]\\.[0-9]{2}"))) << r.out;
  EXPECT_EQ(r.out.find("code"), std::string::npos);
  EXPECT_TRUE(std::regex_search(r.out, std::regex("^[^\n]*tiny-py on [^\n]*prompts.jsonl: greedy, 24 tokens at most, "
                                                  "[^\n]*; ngram T=4 [^\n]*\n")))
      << r.out;
  EXPECT_EQ(r.out.find("interrupted"), std::string::npos);
}

TEST_F(BenchSpec, SaysWhatIsNotAtItsDefault) {
  const Words words{"--category", "text",
                    "--chat",     "--repetition-penalty",
                    "1.1",        "--presence-penalty",
                    "0.5",        "--frequency-penalty",
                    "0.25",       "--logit-bias",
                    "42=-100"};
  const ProcessResult r = bench(words);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("greedy, repetition penalty 1.1, presence penalty 0.5, frequency penalty 0.25, logit bias "
                       "42=-100, 24 tokens at most, end tokens ignored, prompts as user turns, one request"),
            std::string::npos)
      << r.out;
  Words all = words;
  all.push_back("--json");
  const json out = json::parse(bench(all).out), plain = json::parse(bench({"--category", "text", "--json"}).out);
  EXPECT_EQ(out["chat"], true);
  EXPECT_EQ(out["presence_penalty"], 0.5);
  EXPECT_EQ(out["logit_bias"], json({{"42", -100.0}}));
  EXPECT_EQ(plain["chat"], false);
  EXPECT_EQ(plain["repetition_penalty"], 1);
  EXPECT_EQ(plain["logit_bias"], json::object());
}

TEST_F(BenchSpec, InterruptedItReportsWhatItHas) {
  std::string many;
  for (int i = 0; i < 2000; i++) many += line("text", "The");
  folder_.write("many.jsonl", many);
  Words words{"--prompts", file("many.jsonl"), "-n", "40", "--ignore-eos", "--drafter", "ngram,none"};
  words.insert(words.end(), {"--svg", file("plot.svg")});
  const ProcessResult text = interrupted_on_tiny("bench-spec", words);
  EXPECT_EQ(text.exit_code, 130) << text.err;
  EXPECT_TRUE(std::regex_search(text.out, std::regex("\ninterrupted: [0-9]+ of 4000 requests [^\n]*\n$"))) << text.out;
  EXPECT_FALSE(std::filesystem::exists(file("plot.svg"))) << "a plot of a part";
  words.push_back("--json");
  const json out = json::parse(interrupted_on_tiny("bench-spec", words).out);
  EXPECT_EQ(out["interrupted"], true);
  ASSERT_EQ(out["runs"].size(), 1u);
  EXPECT_LT(out["runs"][0]["overall"]["requests"], 2000);
}

TEST_F(BenchSpec, APlotIsWrittenWhereALinkLeads) {
  const std::string link = file("link.svg"), plot = file("plot.svg");
  std::filesystem::create_symlink(plot, link);
  EXPECT_EQ(bench({"--ragged-verify-mode", "compact", "--svg", link}).exit_code, 2) << "refused behind the check";
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_FALSE(std::filesystem::exists(plot)) << "nothing comes into being";
  EXPECT_EQ(bench({"--category", "text", "--svg", link}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(read_file(plot).starts_with("<svg"));
}

TEST_F(BenchSpec, TheSetThatShipsIsInTheFormat) {
  const ProcessResult r = on_tiny("bench-spec", {"--prompts", DELTARING_SOURCE_DIR "/bench/prompts/speed.jsonl", "-n",
                                                 "2", "--num-prompts", "1", "--chat", "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out)["runs"][0]["categories"].size(), 11u);
}

TEST_F(BenchSpec, SimulatesAnAcceptanceLength) {
  const ProcessResult r = bench({"--simulate-acceptance-length", "3", "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NEAR(json::parse(r.out)["runs"][0]["overall"]["acceptance_length"].get<double>(), 3, 0.35)
      << "less where the last window is shorter";
}

TEST_F(BenchSpec, RefusesFilesThatAreNoPromptFiles) {
  const auto with = [&](const std::string& text) {
    folder_.write("bad.jsonl", text);
    return on_tiny("bench-spec", {"--prompts", file("bad.jsonl")}, {.seconds = 5});
  };
  expect_refused(with(""), {"--prompts", "bad.jsonl"}, "empty");
  expect_refused(with("# A text\n"), {"line 1", "'#'", "a line like this works"}, "a text");
  expect_refused(with("{\"turns\": [\"x\"]}\n{\"turns\": "), {"bad.jsonl, line 2"}, "cut");
  const ProcessResult second = with("{\"turns\": [\"x\"]}\n{oops}\n");
  expect_refused(second, {"bad.jsonl, line 2: ", "'o' cannot stand there; "}, "a bad line");
  EXPECT_EQ(second.err.find("line 1"), std::string::npos) << second.err;
  expect_refused(with("{\"turns\": \"x\"}"), {"line 1", "turns"}, "a text");
  expect_refused(with("{\"turns\": []}"), {"line 1", "turns"}, "no turn");
  expect_refused(with("{\"turns\": [\"\"]}"), {"line 1", "turns"}, "an empty turn");
  expect_refused(with("{\"turns\": [3]}"), {"line 1", "turns"}, "a number");
  expect_refused(with("{\"prompt\": \"x\"}"), {"line 1", "turns", "not there"}, "another format");
  expect_refused(with("[{\"turns\": [\"x\"]}, 3]"), {"row 2"}, "an array with a number");
  expect_refused(with("{\"turns\": [\"FULL BENCHMARK DATA SHOULD BE FETCHED FROM\"]}"), {"prepare_data.py"}, "a stub");
  expect_refused(on_tiny("bench-spec", {"--prompts", file("nothing")}),
                 {"--prompts", "nothing", "a line like this works"}, "no file");
  expect_refused(on_tiny("bench-spec", {"--prompts", file(".")}), {"--prompts", "is a folder"}, "a folder");
  expect_refused(on_tiny("bench-spec", {"--prompts", "/dev/null"}), {"--prompts /dev/null", "a device"}, "a device");
  const std::string long_name(300, 'x');
  expect_refused(on_tiny("bench-spec", {"--prompts", long_name}), {"--prompts", "cannot be looked at"}, "a long name");
  expect_refused(on_tiny("bench-spec", {}), {"--prompts"}, "no prompts");
  expect_refused(bench({"--category", "poetry"}), {"--category", "poetry", "code", "text"}, "no such category");
  expect_refused(bench({"--drafter", "psychic"}), {"psychic", "ngram"}, "no such drafter");
  expect_refused(bench({"--num-prompts", "-1"}), {"--num-prompts -1: a whole number from 0 on; 3 works"}, "below 0");
  expect_refused(bench({"--drafter", "none", "--simulate-acceptance-length", "3"}),
                 {"--simulate-acceptance-length 3", "--drafter ngram"}, "nothing drafts");
  expect_refused(bench({"--svg", file("no/such/plot.svg")}), {"--svg"}, "no such folder");
  expect_refused(bench({"--svg", long_name}), {"--svg", "a file in a folder that exists works"}, "a long name");
  expect_refused(bench({"--drafter", long_name}), {"--drafter", "no such folder"}, "a long name");
  const std::string kept = file("kept.svg");
  std::ofstream(kept) << "an older plot";
  expect_refused(bench({"--drafter", "none,nope", "--svg", kept}), {"--drafter nope"}, "no such drafter");
  EXPECT_EQ(read_file(kept), "an older plot");
  expect_refused(bench({"--ragged-verify-mode", "compact"}), {"compact", "ngram", "static"}, "no confidence");
}

}  // namespace
}  // namespace deltaring::test
