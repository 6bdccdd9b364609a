// What the command line refuses: exit code 2, one line that names what was wrong and, where a number is asked for, a
// value that works.
#include <tuple>
#include <utility>

#include "cli/cli_testing.h"

namespace deltaring::test {
namespace {

TEST(CliRefusals, FoldersThatAreNoModel) {
  const ScratchFolder empty;
  for (const char* command : {"generate", "inspect", "doctor"}) {
    Words words{command, "-m", "no/such/folder"};
    const auto with_prompt = [&](Words w) {
      if (std::string(command) == "generate") w.insert(w.end(), {"-p", "x"});
      return w;
    };
    expect_refused(cli(with_prompt(words)), {"no/such/folder"}, command);
    words[2] = empty.path().string();
    expect_refused(cli(with_prompt(words)), {empty.path().string(), "config.json"}, command);
    words[2] = (tiny_py() / "config.json").string();
    expect_refused(cli(with_prompt(words)), {"config.json"}, command);
  }
}

TEST(CliRefusals, ModelsThatAreBroken) {
  struct Case {
    const char* name;
    void (*damage)(const ModelCopy&);
    Words names;
  };
  const Case cases[] = {
      {"another architecture",
       [](const ModelCopy& m) { m.edit_config([](json& c) { c["model_type"] = "llama"; }); },
       {"config.json", "model_type", "llama"}},
      {"no JSON", [](const ModelCopy& m) { m.write("config.json", "{\"model_type\": "); }, {"config.json"}},
      {"an array", [](const ModelCopy& m) { m.write("config.json", "[]"); }, {"config.json"}},
      {"a text for a number",
       [](const ModelCopy& m) { m.edit_config([](json& c) { c["hidden_size"] = "many"; }); },
       {"config.json", "hidden_size"}},
      {"no hidden_size",
       [](const ModelCopy& m) { m.edit_config([](json& c) { c.erase("hidden_size"); }); },
       {"hidden_size"}},
      {"other sizes",
       [](const ModelCopy& m) { m.edit_config([](json& c) { c["intermediate_size"] = 500; }); },
       {"512", "500"}},
      {"no weights", [](const ModelCopy& m) { m.remove("model.safetensors"); }, {"model.safetensors"}},
      {"empty weights", [](const ModelCopy& m) { m.write("model.safetensors", ""); }, {"model.safetensors"}},
      {"cut weights",
       [](const ModelCopy& m) {
         m.write("model.safetensors", read_file(tiny_py() / "model.safetensors").substr(0, 1000000));
       },
       {"model.safetensors"}},
      {"a tensor missing",
       [](const ModelCopy& m) {
         m.edit_weights([](json& header, std::string&) {
           for (auto it = header.begin(); it != header.end(); ++it) {
             if (!it.key().ends_with("layers.4.linear_attn.A_log")) continue;
             header[it.key() + "_elsewhere"] = it.value();
             return static_cast<void>(header.erase(it));
           }
           FAIL() << "the model has no such tensor";
         });
       },
       {"layers.4.linear_attn.A_log"}},
      {"no tokenizer", [](const ModelCopy& m) { m.remove("tokenizer.json"); }, {"tokenizer.json"}},
      {"no JSON tokenizer", [](const ModelCopy& m) { m.write("tokenizer.json", "tokens"); }, {"tokenizer.json"}},
      {"no generation settings",
       [](const ModelCopy& m) { m.write("generation_config.json", "{\"eos_token_id\": \"end\"}"); },
       {"generation_config.json", "eos_token_id"}}};
  for (const Case& c : cases) {
    const ModelCopy copy;
    c.damage(copy);
    expect_refused(cli({"generate", "-m", copy.path(), "-p", "x", "-n", "1"}), c.names, c.name);
  }
}

// What is wrong and what works, in words of ours.
TEST(CliRefusals, FilesThatAreCutOrNotThere) {
  for (const char* file : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
    const std::string whole = read_file(tiny_py() / file);
    const std::pair<std::string, Words> cases[] = {{whole.substr(0, whole.size() / 2), {"ends in the middle"}},
                                                   {"", {"empty"}},
                                                   {" \n\t\n", {"empty"}},
                                                   {"{\n  model", {"'m' cannot stand there", "line 2"}}};
    for (auto [content, names] : cases) {
      const ModelCopy copy;
      copy.write(file, content);
      names.insert(names.end(), {file, "a whole copy of the file works"});
      const ProcessResult r = cli({"generate", "-m", copy.path(), "-p", "x", "-n", "1", "--chat"});
      expect_refused(r, names, file);
      EXPECT_EQ(r.err.find("exception"), std::string::npos) << r.err;
    }
  }
  const ModelCopy copy;
  copy.remove("tokenizer.json");
  expect_refused(cli({"generate", "-m", copy.path(), "-p", "x"}), {copy.path() + " holds no tokenizer.json"},
                 "missing");
}

TEST(CliRefusals, ChatNeedsATemplate) {
  for (const char* file : {"{}", "{\"chat_template\": \"[INST] {{ content }}\"}"}) {
    const ModelCopy copy;
    copy.remove("chat_template.jinja");
    copy.write("tokenizer_config.json", file);
    const Words words{"generate", "-m", copy.path(), "-p", "x", "-n", "1", "-q"};
    EXPECT_EQ(cli(words).exit_code, 0) << "which needs none";
    Words chat = words;
    chat.push_back("--chat");
    expect_refused(cli(chat), {"without --chat works"}, file);
  }
}

TEST(CliRefusals, FlagsThatWouldDoNothing) {
  const auto refused = [](const char* command, const Words& words, const Words& names) {
    const ProcessResult r = on_tiny(command, words);
    expect_refused(r, names, command);
    EXPECT_NE(r.err.find(" works"), std::string::npos) << r.err;
  };
  refused("generate", {"-p", "x", "--logprobs", "3"}, {"--logprobs 3", "--json"});
  const Words flags[] = {{"--speculative-num-draft-tokens", "8"}, {"--speculative-adaptive"}};
  for (Words words : flags) {
    const std::string flag = words[0];
    words.insert(words.end(), {"-p", "x", "-n", "2"});
    refused("generate", words, {flag, "--speculative-algorithm ngram"});
    words.insert(words.end(), {"--speculative-algorithm", "ngram"});
    EXPECT_EQ(on_tiny("generate", words).exit_code, 0) << flag;
    for (const char* command : {"inspect", "plan"}) {
      Words none(words.begin(), words.begin() + (flag.ends_with("tokens") ? 2 : 1));
      EXPECT_EQ(on_tiny(command, none).exit_code, 0) << "of itself it takes the MTP head";
      none.insert(none.end(), {"--speculative-algorithm", "none"});
      refused(command, none, {flag, "--speculative-algorithm ngram"});
    }
  }
  EXPECT_EQ(on_tiny("generate", {"-p", "x", "-n", "2", "--speculative-num-draft-tokens", "1"}).exit_code, 0)
      << "the anchor alone is plain decoding";
}

TEST(CliRefusals, RingsThatCannotWorkSayWhichDoes) {
  const std::string ring = "--linear-replayssm-cache-len", window = "--speculative-num-draft-tokens";
  struct Case {
    Words words;
    std::string flag;
  };
  const Case cases[] = {{{ring, "24"}, ring},
                        {{ring, "8"}, ring},
                        {{ring, "-16"}, ring},
                        {{window, "16", ring, "16"}, ring},
                        {{window, "8", ring, "16"}, ring},
                        {{window, "40", ring, "32", "--fold-policy", "every"}, ring},
                        {{ring, "4611686018427387904"}, ring},
                        {{window, "-3"}, window},
                        {{window, "257"}, window},
                        {{window, "4000000000000000000"}, window},
                        {{"--fold-grain", "12"}, "--fold-grain"},
                        {{"--fold-grain", "4000000000000000000"}, "--fold-grain"}};
  for (const Case& c : cases) {
    Words words{"-p", "x", "-n", "1", "-q", "--speculative-algorithm", "ngram"};
    words.insert(words.end(), c.words.begin(), c.words.end());
    const std::string where = c.words[0] + " " + c.words[1];
    const auto value = std::find(words.begin(), words.end(), c.flag) + 1;
    const ProcessResult r = on_tiny("generate", words, {.seconds = 5});
    expect_refused(r, {c.flag, *value}, where);
    *value = value_that_works(r.err);
    EXPECT_EQ(on_tiny("generate", words, {.seconds = 5}).exit_code, 0) << where << ": does " << *value << " work?";
  }
}

TEST(CliRefusals, Prompts) {
  const ScratchFolder folder;
  const std::string nowhere = (folder.path() / "nothing").string();
  expect_refused(on_tiny("generate", {"-p", ""}), {"prompt", "empty"}, "empty");
  expect_refused(on_tiny("generate", {}), {"prompt", "empty"}, "empty standard input");
  expect_refused(on_tiny("generate", {"-p", "ab\xff"}), {"prompt", "UTF-8", "2"}, "an invalid byte");
  expect_refused(on_tiny("generate", {}, {.input = "\xe4\xb8"}), {"UTF-8"}, "half a character");
  expect_refused(on_tiny("generate", {"-p", "x", "--prompt-file", "y"}), {"--prompt", "--prompt-file"}, "both");
  expect_refused(on_tiny("generate", {"--prompt-file", nowhere}), {"--prompt-file", nowhere}, "no such file");
  expect_refused(on_tiny("generate", {"--prompt-file", folder.path().string()}),
                 {"--prompt-file", folder.path().string()}, "a folder as file");
  expect_refused(on_tiny("generate", {"-p", "x", "--system", "Be brief."}), {"--system", "--chat"}, "system alone");
}

TEST(CliRefusals, PromptsLongerThanTheContext) {
  const std::string prompt = "a b c d e f g h i j k l m n o p q r s t";
  const ProcessResult r = on_tiny("generate", {"-p", prompt, "--context-length", "8", "-n", "3"});
  expect_refused(r, {"--context-length", "8"}, "long");
  const ProcessResult again =
      on_tiny("generate", {"-p", prompt, "--context-length", value_that_works(r.err), "-n", "3", "--json"});
  ASSERT_EQ(again.exit_code, 0) << r.err;
  EXPECT_EQ(json::parse(again.out)["tokens"].size(), 3u);

  std::string longer;
  for (int i = 0; i < 9000; i++) longer += "x y\n";
  const ProcessResult beyond = on_tiny("generate", {"-n", "3"}, {.input = longer});
  expect_refused(beyond, {"8192"}, "longer than the model takes");
  const std::string value = value_that_works(beyond.err);
  EXPECT_LE(std::stoll(value), 8192) << "the model takes 8192 tokens at most: " << beyond.err;
  expect_refused(on_tiny("generate", {"-p", "x", "--context-length", "8193"}), {"--context-length", "8193", "8192"},
                 "beyond the model");
}

TEST(CliRefusals, UnknownWordsNameANearOne) {
  expect_refused(on_tiny("generate", {"-p", "x", "--temprature", "0"}), {"--temprature", "--temperature"}, "flag");
  expect_refused(on_tiny("generate", {"-p", "x", "--top_p=0.5"}), {"--top_p", "--top-p"}, "flag with value");
  expect_refused(on_tiny("inspect", {"--jsn"}), {"--jsn", "--json"}, "inspect");
  expect_refused(on_tiny("doctor", {"--max-token", "3"}), {"--max-token", "--max-tokens"}, "doctor");
  expect_refused(cli({"genrate", "-p", "x"}), {"genrate", "generate"}, "subcommand");
  expect_refused(cli({}), {"subcommand"}, "nothing");
  expect_refused(cli({"generate", "-p", "x"}), {"--model"}, "no model");
  expect_refused(on_tiny("generate", {"-p", "x", "stray"}), {"stray"}, "a stray word");
  expect_refused(on_tiny("generate", {"-p", "x", "-n", "1", "--stop", "END", "stray"}), {"stray"}, "a stray word");
}

TEST(CliRefusals, Values) {
  struct Case {
    const char *flag, *value;
  };
  const Case cases[] = {{"--top-p", "abc"},
                        {"--top-p", "0"},
                        {"--top-p", "2"},
                        {"--top-p", "nan"},
                        {"--top-k", "-1"},
                        {"--top-k", "2.5"},
                        {"--min-p", "2"},
                        {"--temperature", "-1"},
                        {"--temperature", "inf"},
                        {"--temperature", "warm"},
                        {"--max-tokens", "0"},
                        {"--max-tokens", "-5"},
                        {"--max-tokens", "ten"},
                        {"--max-tokens", "99999999999999999999"},
                        {"--seed", "x"},
                        {"--seed", "-1"},
                        {"--threads", "-1"},
                        {"--threads", "5000"},
                        {"--backend", "abacus"},
                        {"--speculative-algorithm", "medusa"},
                        {"--fold-policy", "never"},
                        {"--mamba-ssm-dtype", "float8"},
                        {"--kv-cache-dtype", "int8"},
                        {"--context-length", "-1"},
                        {"--chunked-prefill-size", "100"},
                        {"--chunked-prefill-size", "0"},
                        {"--chunked-prefill-size", "-64"},
                        {"--chunked-prefill-size", "4611686018427387904"}};
  for (const auto& [flag, value] : cases) {
    expect_refused(on_tiny("generate", {"-p", "x", flag, value}, {.seconds = 3}), {std::string(flag).substr(2), value},
                   std::string(flag) + " " + value);
  }
  const std::pair<const char*, Words> no_numbers[] = {
      {"--temperature", {"abc: a number", "0.7 works"}},
      {"--top-p", {"abc: a number", "0.95 works"}},
      {"--seed", {"abc: a whole number from 0 on", "0 works"}},
      {"--max-tokens", {"abc: a whole number", "256 works"}},
      {"--speculative-num-draft-tokens", {"a whole number", "4 works"}}};
  for (const auto& [flag, names] : no_numbers) {
    const ProcessResult r = on_tiny("generate", {"-p", "x", flag, "abc"});
    expect_refused(r, names, flag);
    EXPECT_TRUE(r.err.starts_with("error: " + std::string(flag) + " abc: ")) << r.err;
  }
  const std::tuple<const char*, const char*, const char*> no_fits[] = {
      {"-n", "99999999999999999999", "a whole number from -9223372036854775808 to 9223372036854775807; 256 works"},
      {"-n", "-99999999999999999999", "a whole number from -9223372036854775808 to 9223372036854775807; 256 works"},
      {"--threads", "4294967297", "a whole number from -2147483648 to 2147483647; 0 works"},
      {"--seed", "99999999999999999999", "a whole number from 0 to 18446744073709551615; 0 works"},
      {"--min-p", "1e-50", "1e-50: a number, neither too large nor too close to 0; 0.05 works"},
      {"--temperature", "1e50", "1e50: a number, neither too large nor too close to 0; 0.7 works"},
      {"--temperature", "+-1", "+-1: a number; 0.7 works"}};
  for (const auto& [flag, value, wanted] : no_fits) {
    expect_refused(on_tiny("generate", {"-p", "x", flag, value}), {wanted}, std::string(flag) + " " + value);
  }
  EXPECT_EQ(on_tiny("generate", {"-p", "x", "-n", "+1", "--temperature", "+0.5", "--seed", "+3"}).exit_code, 0);
  expect_refused(on_tiny("generate", {"-p", "x", "-n", "1", "--stop", ""}), {"stop"}, "an empty stop string");
  expect_refused(on_tiny("inspect", {"--speculative-algorithm", "medusa"}), {"--speculative-algorithm", "medusa"},
                 "inspect");
}

#ifndef __SANITIZE_ADDRESS__  // whose shadow memory needs the address space
// Whatever the limit, it works or it says so. Weights, scratch, state and threads run out at different ones.
TEST(CliRefusals, TooLittleMemory) {
  int refused = 0;
  for (const auto& [mib, threads] : std::vector<std::pair<rlim_t, const char*>>{
           {24, "1"}, {30, "1"}, {38, "1"}, {60, "1"}, {30, "2"}, {38, "2"}, {60, "2"}, {100, "64"}, {200, "64"}}) {
    const Words words{"-p", "x", "-n", "1", "-q", "--threads", threads};
    const ProcessResult r = on_tiny("generate", words, {.address_space = mib << 20});
    if (r.exit_code == 0) continue;
    expect_refused(r, {}, std::to_string(mib) + " MiB, threads " + threads);
    EXPECT_TRUE(std::regex_search(r.err, std::regex("memory|threads"))) << "of what is there too little? " << r.err;
    refused++;
  }
  EXPECT_GE(refused, 5);
}

TEST(CliRefusals, TooLittleMemoryForTheContextNamesTheFlag) {
  const Words words{"-p", "x", "-n", "1", "-q", "--context-length"};
  const auto with = [&](const std::string& tokens) {
    Words all = words;
    all.push_back(tokens);
    return on_tiny("generate", all, {.address_space = 48 << 20});
  };
  const ProcessResult r = with("8192");
  expect_refused(r, {"--context-length", "8192", "needs less"}, "19 MiB of state");
  std::smatch less;
  ASSERT_TRUE(std::regex_search(r.err, less, std::regex("needs less: --context-length ([0-9]+)"))) << r.err;
  EXPECT_EQ(with(less[1]).exit_code, 0) << "less context, less memory";
}
#endif

}  // namespace
}  // namespace deltaring::test
