// What the command line does when all is well.
#include "cli/cli_testing.h"
#include "deltaring/engine.h"

namespace deltaring::test {
namespace {

constexpr const char* kPrompt = "def add(a, b):\n";

json json_of(const ProcessResult& r) {
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(lines(r.out).size(), 1u) << r.out;
  return json::parse(r.out);  // one object and nothing else
}

TEST(Cli, HelpShowsEveryFlagAndItsDefault) {
  const ProcessResult top = cli({"--help"});
  EXPECT_EQ(top.exit_code, 0);
  for (const char* command : {"generate", "inspect", "doctor"}) {
    EXPECT_NE(top.out.find(command), std::string::npos) << top.out;
    const ProcessResult help = cli({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_EQ(help.err, "");
    std::vector<const char*> flags{"--fold-policy.*grid", "--fold-grain.*8", "--mamba-ssm-dtype.*auto",
                                   "--kv-cache-dtype.*float32", "--context-length.*0"};
    if (command != std::string("inspect")) {
      flags.insert(flags.end(), {"--backend.*cpu", "--threads.*0", "--chunked-prefill-size.*256"});
    }
    if (command != std::string("doctor")) {  // which chooses drafters and windows itself
      flags.insert(flags.end(), {"--speculative-algorithm[^]*(none|eagle)", "--speculative-num-draft-tokens.*0",
                                 "--linear-replayssm-cache-len.*0"});
    }
    for (const char* line : flags) {
      EXPECT_TRUE(std::regex_search(help.out, std::regex(line))) << command << " --help lacks " << line << "\n"
                                                                 << help.out;
    }
  }
  const std::string generate = cli({"generate", "--help"}).out;
  for (const char* line :
       {"--max-tokens.*256", "--min-p.*0", "--seed.*0", "--temperature", "--top-k", "--top-p", "--stop", "--ignore-eos",
        "--compare", "--json", "--quiet", "--chat", "--system", "--prompt-file"}) {
    EXPECT_TRUE(std::regex_search(generate, std::regex(line))) << line << "\n" << generate;
  }
  EXPECT_TRUE(std::regex_search(cli({"--version"}).out, std::regex("^deltaring [0-9]+\\.[0-9]+\\.[0-9]+\n$")));
}

TEST(Cli, JsonIsOneObjectWithAllKeys) {
  const ProcessResult r = on_tiny("generate", {"-p", kPrompt, "-n", "24", "--temperature", "0", "--ignore-eos",
                                               "--json", "--speculative-algorithm", "eagle", "--compare"});
  EXPECT_EQ(r.err, "");
  const json out = json_of(r);
  for (const char* key : {"text",
                          "tokens",
                          "finish_reason",
                          "prompt_tokens",
                          "completion_tokens",
                          "prefill_seconds",
                          "decode_seconds",
                          "decode_tokens_per_second",
                          "prefill_tokens_per_second",
                          "spec_verify_ct",
                          "spec_accept_length",
                          "spec_draft_token_num",
                          "spec_accept_token_num",
                          "accepted_per_position",
                          "drafted_per_position",
                          "folds",
                          "drafter",
                          "T",
                          "R",
                          "F",
                          "checkpoint_bytes",
                          "record_bytes",
                          "conv_bytes",
                          "snapshot_bytes",
                          "kv_bytes_per_token",
                          "plain_decode_tokens_per_second",
                          "speedup",
                          "identical"}) {
    EXPECT_TRUE(out.contains(key)) << key;
  }
  EXPECT_EQ(out["tokens"].size(), 24u);
  EXPECT_EQ(out["completion_tokens"], 24);
  EXPECT_EQ(out["finish_reason"], "length");
  EXPECT_EQ(out["identical"], true);
  EXPECT_EQ(out["T"], 4);
  EXPECT_EQ(out["accepted_per_position"].size(), 3u);
  EXPECT_GE(out["spec_accept_length"].get<double>(), 1);
}

TEST(Cli, QuietPrintsTheTextOnly) {
  const Words common{"-n", "16", "--temperature", "0", "--ignore-eos"};
  const auto with = [&](Words words) {
    words.insert(words.end(), common.begin(), common.end());
    return words;
  };
  const std::string text = json_of(on_tiny("generate", with({"-p", kPrompt, "--json"})))["text"];
  const ProcessResult quiet = on_tiny("generate", with({"-p", kPrompt, "-q"}));
  EXPECT_EQ(quiet.exit_code, 0);
  EXPECT_EQ(quiet.out, text + "\n");
  EXPECT_EQ(quiet.err, "");
  const ProcessResult chatty = on_tiny("generate", with({"-p", kPrompt}));
  EXPECT_EQ(chatty.out.substr(0, text.size()), text) << "the text goes to standard output, all else to standard error";
  EXPECT_LE(chatty.out.size(), text.size() + 1);
  EXPECT_NE(chatty.err.find("tok/s"), std::string::npos);
  EXPECT_EQ(chatty.err.find('\r'), std::string::npos) << "a progress bar off the terminal";

  const ScratchFolder folder;
  folder.write("prompt.txt", kPrompt);
  for (const ProcessResult& r : {on_tiny("generate", with({"-q"}), {.input = kPrompt}),
                                 on_tiny("generate", with({"-q", "--prompt-file", "-"}), {.input = kPrompt}),
                                 on_tiny("generate", with({"-q", "-f", (folder.path() / "prompt.txt").string()}))}) {
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_EQ(r.out, quiet.out);
  }
}

TEST(Cli, SaysThatItWaitsForAPrompt) {
  const Words words{"-q", "-n", "4", "--temperature", "0"};
  const ProcessResult typed = on_tiny("generate", words, {.input = kPrompt, .on_terminal = true});
  EXPECT_EQ(typed.exit_code, 0) << typed.err;
  EXPECT_EQ(lines(typed.err).size(), 1u) << typed.err;
  for (const char* word : {"prompt", "^D"}) EXPECT_NE(typed.err.find(word), std::string::npos) << typed.err;
  EXPECT_EQ(on_tiny("generate", words, {.input = kPrompt}).err, "") << "a pipe";
}

TEST(Cli, SamplesByTheModelsDefaultsAndTheSeed) {
  const auto text = [](const Words& more) {
    Words words{"-p", kPrompt, "-n", "16", "--json", "--ignore-eos"};
    words.insert(words.end(), more.begin(), more.end());
    return json_of(on_tiny("generate", words))["text"].get<std::string>();
  };
  const std::string zero = text({});
  EXPECT_EQ(text({"--seed", "0", "--temperature", "1", "--top-k", "20", "--top-p", "0.95"}), zero);
  EXPECT_NE(text({"--seed", "1"}), zero);
  EXPECT_NE(text({"--temperature", "0"}), zero);
}

TEST(Cli, ChatAndStopStrings) {
  const Words chat{"-p", "Say hello.", "--chat", "--system", "Be brief.", "-n", "12", "--temperature", "0", "--json"};
  const json answer = json_of(on_tiny("generate", chat));
  EXPECT_GT(answer["prompt_tokens"], 15) << "the turns around the prompt";
  const std::string text =
      json_of(on_tiny("generate", {"-p", kPrompt, "-n", "24", "--temperature", "0", "--json"}))["text"];
  ASSERT_GT(text.size(), 12u);
  const std::string stop = text.substr(8, 3);
  const json stopped = json_of(on_tiny(
      "generate", {"-p", kPrompt, "-n", "24", "--temperature", "0", "--stop", "never", "--stop", stop, "--json"}));
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped["finish_reason"], "stop_string");
}

TEST(Cli, InspectAgreesWithTheEngine) {
  for (const Words& words : {Words{}, Words{"--speculative-num-draft-tokens", "8", "--fold-grain", "16",
                                            "--mamba-ssm-dtype", "bfloat16", "--context-length", "100"}}) {
    EngineOptions o;
    o.model = tiny_py().string(), o.speculative_algorithm = "eagle", o.threads = 1;
    if (!words.empty()) {
      o.speculative_num_draft_tokens = 8, o.fold_grain = 16, o.mamba_ssm_dtype = "bfloat16", o.context_length = 100;
    }
    const Engine engine(o);
    const EngineInfo& info = engine.info();
    Words all = words;
    all.push_back("--json");
    const json out = json_of(on_tiny("inspect", all));
    EXPECT_EQ(out["T"], info.T);
    EXPECT_EQ(out["R"], info.R);
    EXPECT_EQ(out["F"], info.F);
    EXPECT_EQ(out["context_length"], info.context_length);
    EXPECT_EQ(out["checkpoint_bytes"], info.checkpoint_bytes);
    EXPECT_EQ(out["record_bytes"], info.record_bytes);
    EXPECT_EQ(out["conv_bytes"], info.conv_bytes);
    EXPECT_EQ(out["snapshot_bytes"], info.snapshot_bytes);
    EXPECT_EQ(out["kv_bytes_per_token"], info.kv_bytes_per_token);
    EXPECT_EQ(out["state_bytes"], info.state_bytes);
    EXPECT_EQ(out["vocab_size"], info.vocabulary);
    EXPECT_EQ(out["notices"], json(info.notices));
    int64_t parameters = 0, bytes = 0;
    for (const auto& [dtype, weights] : out["weights"].items()) {
      parameters += weights["parameters"].get<int64_t>(), bytes += weights["bytes"].get<int64_t>();
    }
    EXPECT_EQ(parameters, info.parameters);
    EXPECT_EQ(bytes, info.weight_bytes);
  }
  const ProcessResult text = on_tiny("inspect", {});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_EQ(text.err, "");
  for (const char* part : {"6 GDN", "2 full attention", "Hk 2", "Hv 6", "eagle", "KiB", "snapshots"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
}

TEST(Cli, DoctorFindsTheModelHealthy) {
  const ProcessResult r = on_tiny("doctor", {"-n", "4"});
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_NE(r.out.find("healthy"), std::string::npos) << r.out;
  EXPECT_EQ(r.out.find("FAIL"), std::string::npos) << r.out;
}

TEST(Cli, InspectAndDoctorTakeADrafter) {
  const std::string folder = tiny_py().string() + "-dspark";
  const Words words{"--drafter", folder};
  const json out = json_of(on_tiny("inspect", {"--drafter", folder, "--json"}));
  const json& drafter = out["block_drafter"];
  EXPECT_EQ(drafter["algorithm"], "dspark");
  EXPECT_EQ(drafter["T"], out["T"]);
  EXPECT_GT(drafter["bytes"], drafter["parameters"]);
  EXPECT_NE(on_tiny("inspect", words).out.find("drafter    " + folder + ": dspark, "), std::string::npos);
  EXPECT_FALSE(json_of(on_tiny("inspect", {"--json"})).contains("block_drafter"));

  const ProcessResult r = on_tiny("doctor", {"-n", "4", "--drafter", folder});
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  for (const char* line : {"ok    ngram T=4", "ok    eagle T=4", "ok    dspark T=2"})
    EXPECT_NE(r.out.find(line), std::string::npos) << line << "\n" << r.out;
  const std::string T = std::to_string(drafter["T"].get<int>());
  EXPECT_NE(r.out.find("ok    dspark T=" + T), std::string::npos) << "its whole block\n" << r.out;
  for (const char* command : {"inspect", "doctor"})
    expect_refused(on_tiny(command, {"--drafter", "no/such/folder"}), {"no/such/folder"}, command);
}

// NaN in one weight: generating refuses, inspect and doctor say where.
TEST(Cli, NonFiniteWeightsAreFound) {
  const ModelCopy copy;
  std::string name;
  copy.edit_weights([&](json& header, std::string& data) {
    for (auto it = header.begin(); it != header.end(); ++it) {
      if (!it.key().ends_with("layers.2.mlp.down_proj.weight")) continue;
      name = it.key();
      const size_t at = it.value()["data_offsets"][0].get<size_t>();
      data[at] = '\xc0', data[at + 1] = '\x7f';  // bfloat16 NaN
    }
  });
  ASSERT_FALSE(name.empty());
  expect_refused(cli({"generate", "-m", copy.path(), "-p", "x", "-n", "2", "-q"}), {"finite"}, "generate");
  const ProcessResult scan = cli({"inspect", "-m", copy.path(), "--scan", "--json"});
  ASSERT_EQ(scan.exit_code, 0) << scan.err;
  const json found = json::parse(scan.out)["non_finite"];
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0]["name"], name);
  EXPECT_EQ(found[0]["count"], 1);
  const ProcessResult doctor = cli({"doctor", "-m", copy.path(), "-n", "4"});
  EXPECT_EQ(doctor.exit_code, 1) << "a check failed: " << doctor.err;
  EXPECT_NE(doctor.out.find("FAIL"), std::string::npos) << doctor.out;
  EXPECT_NE(doctor.out.find(name), std::string::npos) << doctor.out;
  EXPECT_EQ(doctor.out.find("healthy"), std::string::npos) << doctor.out;
}

// The same in a drafter, which can say anything without changing the output.
TEST(Cli, NonFiniteWeightsOfADrafterAreFound) {
  const std::string whole = tiny_py().string() + "-dspark";
  const auto scanned = [&](const std::string& drafter, Words more) {
    more.insert(more.begin(), {"--scan", "--drafter", drafter});
    return on_tiny("inspect", more);
  };
  EXPECT_TRUE(json_of(scanned(whole, {"--json"}))["block_drafter"]["non_finite"].empty());
  EXPECT_NE(scanned(whole, {}).out.find("every weight of the drafter is finite"), std::string::npos);
  const ModelCopy copy(whole);
  copy.edit_weights([&](json& header, std::string& data) {
    const size_t at = header["fc.weight"]["data_offsets"][0].get<size_t>();
    data[at] = '\xc0', data[at + 1] = '\x7f';  // bfloat16 NaN
  });
  const json out = json_of(scanned(copy.path(), {"--json"}));
  EXPECT_TRUE(out["non_finite"].empty());
  ASSERT_EQ(out["block_drafter"]["non_finite"].size(), 1u);
  EXPECT_EQ(out["block_drafter"]["non_finite"][0]["name"], "fc.weight");
  EXPECT_EQ(out["block_drafter"]["non_finite"][0]["count"], 1);
  const ProcessResult doctor = on_tiny("doctor", {"-n", "4", "--drafter", copy.path()});
  EXPECT_EQ(doctor.exit_code, 1) << doctor.err;
  for (const char* line : {"ok    every weight of the model",
                           "FAIL  1 tensors of the drafter hold NaN or infinity, first "
                           "fc.weight"})
    EXPECT_NE(doctor.out.find(line), std::string::npos) << doctor.out;
}

TEST(Cli, InterruptEndsTheOutputWhole) {
  const Words words{"-p", "# \u4e16\u754c \U0001f642\n", "-n", "8000", "--ignore-eos", "--temperature", "2"};
  const ProcessResult text = on_tiny("generate", words, {.interrupt_at_first_output = true});
  EXPECT_TRUE(text.exit_code == 0 || text.exit_code == 130) << text.exit_code;
  EXPECT_FALSE(text.out.empty());
  EXPECT_TRUE(is_utf8(text.out));
  EXPECT_LT(text.out.size(), 4000u) << "it went on after the interrupt";
}

TEST(Cli, InterruptIsSeenWhereNoTextComes) {
  const ProcessResult r = interrupted_on_tiny("generate", {"-p", "x", "-n", "8000", "--ignore-eos", "--temperature",
                                                           "0", "--logit-bias", "4064=100", "--json"});
  ASSERT_EQ(r.exit_code, 130) << r.err;
  const json out = json::parse(r.out);
  EXPECT_EQ(out["text"], "");
  EXPECT_EQ(out["finish_reason"], "cancelled");
  EXPECT_LT(out["tokens"].size(), 8000u);
}

// The reference backend takes about a minute for the whole prompt.
TEST(Cli, InterruptEndsTheRunningPrompt) {
  std::string prompt;
  for (int i = 0; i < 2000; i++) prompt += "x y\n";
  const Words words{"-p", prompt, "--backend", "reference", "--chunked-prefill-size", "64", "-n", "2"};
  for (const char* how : {"-q", "--json"}) {
    Words all = words;
    all.push_back(how);
    const ProcessResult r = interrupted_on_tiny("generate", all);
    EXPECT_EQ(r.exit_code, 130) << how << "\n" << r.err;
    if (how != std::string("--json")) {
      EXPECT_EQ(r.out, "");
      continue;
    }
    const json out = json::parse(r.out);
    EXPECT_EQ(out["finish_reason"], "cancelled");
    EXPECT_EQ(out["completion_tokens"], 0);
    EXPECT_EQ(out["prefill_tokens_per_second"], 0) << "not of a prompt that was left";
  }
  EXPECT_NE(interrupted_on_tiny("generate", words).err.find("interrupted in the prompt"), std::string::npos);
}

// A full disk is an error, not a short output.
TEST(Cli, FullOutputIsAnError) {
  for (const char* how : {"--json", "-q"}) {
    const ProcessResult r = on_tiny("generate", {"-p", kPrompt, "-n", "4", how}, {.stdout_path = "/dev/full"});
    EXPECT_EQ(r.exit_code, 2) << how;
    EXPECT_NE(r.err.find("error: "), std::string::npos) << how;
  }
}

}  // namespace
}  // namespace deltaring::test
