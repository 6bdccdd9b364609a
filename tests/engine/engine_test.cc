#include "deltaring/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_testing.h"

namespace deltaring::test {
namespace {

std::string name_of(const EngineOptions& o) {
  return o.speculative_algorithm + " T " + std::to_string(o.speculative_num_draft_tokens) + " R " +
         std::to_string(o.linear_replayssm_cache_len) + " F " + std::to_string(o.fold_grain) + " " + o.fold_policy +
         " " + o.mamba_ssm_dtype + " kv " + o.kv_cache_dtype;
}

TEST(Engine, SpeculationChangesNothing) {
  Engine plain(engine_options("none"));
  std::vector<GenerateResult> want;
  for (const char* prompt : kPrompts) want.push_back(run(plain, prompt, greedy(20)));
  int64_t accepted = 0, rejected = 0;
  for (const char* algorithm : {"ngram", "eagle"}) {
    for (const int64_t T : {1, 3, 8}) {
      Engine engine(engine_options(algorithm, T));
      for (size_t i = 0; i < std::size(kPrompts); i++) {
        const std::string where = std::string(algorithm) + " T " + std::to_string(T) + " prompt " + std::to_string(i);
        const GenerateResult got = run(engine, kPrompts[i], greedy(20));
        expect_same(got, want[i], where);
        expect_sane_statistics(got, T, where);
        accepted += got.accepted, rejected += got.drafted - got.accepted;
      }
    }
  }
  EXPECT_GT(accepted, 30);
  EXPECT_GT(rejected, 30);
}

// R never changes a bit, nor F while the checkpoint is exact; every option decodes alike with and without speculation.
TEST(Engine, OptionsOfTheStateKeepSpeculationExact) {
  const auto option = [](const auto& change) {
    EngineOptions o = engine_options("eagle", 4);
    change(o);
    return o;
  };
  const std::vector<EngineOptions> exact = {option([](EngineOptions& o) { o.linear_replayssm_cache_len = 32; }),
                                            option([](EngineOptions& o) { o.linear_replayssm_cache_len = 64; }),
                                            option([](EngineOptions& o) { o.threads = 2; })};
  const std::vector<EngineOptions> other_roundings = {
      option([](EngineOptions& o) { o.fold_grain = 16; }),
      option([](EngineOptions& o) { o.fold_policy = "every", o.linear_replayssm_cache_len = 16; }),
      option([](EngineOptions& o) { o.state_rollback = "snapshot"; }),
      option([](EngineOptions& o) { o.state_rollback = "snapshot", o.mamba_ssm_dtype = "bfloat16"; }),
      option([](EngineOptions& o) { o.mamba_ssm_dtype = "bfloat16"; }),
      option([](EngineOptions& o) { o.mamba_ssm_dtype = "float16", o.fold_grain = 16; }),
      option([](EngineOptions& o) { o.kv_cache_dtype = "bfloat16"; })};
  Engine base(engine_options("eagle", 4));
  const GenerateResult want = run(base, kPrompts[0], greedy(24));
  for (const std::vector<EngineOptions>* group : {&exact, &other_roundings}) {
    for (const EngineOptions& o : *group) {
      Engine engine(o);
      GenerateOptions g = greedy(24);
      const GenerateResult on = run(engine, kPrompts[0], g);
      g.speculate = false;
      expect_same(on, run(engine, kPrompts[0], g), name_of(o));
      if (group == &exact) {
        expect_same(on, want, name_of(o));
      } else {
        EXPECT_NE(on.logits_digest, want.logits_digest) << name_of(o) << " had no effect";
      }
      EXPECT_GT(on.accepted, 0) << name_of(o);
      EXPECT_EQ(on.folds > 0, o.state_rollback == "replay") << name_of(o);
    }
  }
}

TEST(Engine, MaxTokensIsExactInsideAnAcceptedBlock) {
  Engine engine(engine_options("eagle", 8));
  GenerateOptions g = greedy(20);
  const GenerateResult whole = run(engine, kPrompts[1], g);
  EXPECT_GT(whole.accepted, whole.verify_steps) << "too few accepted drafts to cut a block";
  for (int64_t n = 1; n <= 20; n++) {
    g.max_tokens = n;
    const GenerateResult r = run(engine, kPrompts[1], g);
    EXPECT_EQ(r.tokens, std::vector<int32_t>(whole.tokens.begin(), whole.tokens.begin() + n));
    EXPECT_TRUE(whole.text.starts_with(r.text)) << n;
    EXPECT_EQ(r.finish_reason, FinishReason::length) << n;
    expect_sane_statistics(r, 8, "max_tokens " + std::to_string(n));
  }
}

TEST(Engine, StopTokensEndTheOutputInsideABlock) {
  Engine engine(engine_options("eagle", 8));
  GenerateOptions g = greedy(24);
  const GenerateResult whole = run(engine, kPrompts[1], g);
  for (size_t at = 0; at < whole.tokens.size(); at += 5) {
    const auto first = std::find(whole.tokens.begin(), whole.tokens.end(), whole.tokens[at]);
    g.stop_token_ids = {4090, whole.tokens[at]};  // 4090 is a padding row of the head
    const GenerateResult r = run(engine, kPrompts[1], g);
    EXPECT_EQ(r.tokens, std::vector<int32_t>(whole.tokens.begin(), first + 1)) << at;
    EXPECT_EQ(r.finish_reason, FinishReason::stop_token);
    EXPECT_TRUE(whole.text.starts_with(r.text));
    GenerateOptions without = greedy(first - whole.tokens.begin());
    if (without.max_tokens > 0) {
      EXPECT_EQ(r.text, run(engine, kPrompts[1], without).text) << "the stop token shows";
    }
  }
}

TEST(Engine, EndTokensStopUnlessIgnored) {
  Engine engine(engine_options("ngram", 4));
  const std::vector<Message> chat{{.role = "user", .content = "Write a function that adds two numbers."}};
  GenerateOptions g{.max_tokens = 200, .ignore_eos = false};
  const GenerateResult stopped = engine.generate(chat, g);
  ASSERT_EQ(stopped.finish_reason, FinishReason::stop_token) << stopped.text;
  g.ignore_eos = true, g.max_tokens = static_cast<int64_t>(stopped.tokens.size()) + 5;
  const GenerateResult ignored = engine.generate(chat, g);
  EXPECT_EQ(ignored.finish_reason, FinishReason::length);
  ASSERT_EQ(static_cast<int64_t>(ignored.tokens.size()), g.max_tokens);
  EXPECT_TRUE(std::equal(stopped.tokens.begin(), stopped.tokens.end(), ignored.tokens.begin()));
  EXPECT_TRUE(ignored.text.starts_with(stopped.text));
  EXPECT_EQ(ignored.text.find("<|"), std::string::npos) << "special tokens are no text: " << ignored.text;
  g.stop_token_ids = {stopped.tokens.back()};
  EXPECT_EQ(engine.generate(chat, g).tokens, stopped.tokens) << "the request's own stop tokens are never ignored";
}

TEST(Engine, StreamIsTheTextInWholeCharacters) {
  Engine engine(engine_options("eagle", 8));
  for (const char* prompt : kPrompts) {
    GenerateOptions g = greedy(40);
    g.temperature = 2, g.seed = 5;  // far from the training data: bytes of all kinds
    std::string stream;
    const GenerateResult r = engine.generate(std::string_view(prompt), g, [&](std::string_view piece) {
      EXPECT_FALSE(piece.empty());
      EXPECT_TRUE(is_utf8(piece)) << piece;
      stream += piece;
      return true;
    });
    EXPECT_EQ(stream, r.text);
  }
}

TEST(Engine, OnTextEndsTheRequest) {
  Engine engine(engine_options("eagle", 4));
  const GenerateResult whole = run(engine, kPrompts[0], greedy(40));
  for (const size_t enough : {1, 20, 50}) {
    std::string stream;
    const GenerateResult r = engine.generate(std::string_view(kPrompts[0]), greedy(40), [&](std::string_view piece) {
      stream += piece;
      return stream.size() < enough;
    });
    EXPECT_EQ(stream, r.text);
    EXPECT_TRUE(whole.text.starts_with(r.text));
    EXPECT_GE(r.text.size(), enough);
    EXPECT_LT(r.tokens.size(), 40u);
    expect_sane_statistics(r, 4, "ended early");
  }
  expect_same(run(engine, kPrompts[0], greedy(40)), whole, "after an early end");
}

TEST(Engine, OnPrefillEndsTheRequestBetweenPasses) {
  EngineOptions o = engine_options("eagle", 4);
  o.chunked_prefill_size = 64;
  Engine engine(o);
  const std::vector<int32_t> prompt(200, 5);
  const GenerateResult whole = engine.generate(prompt, greedy(12));
  for (const size_t passes : {1, 2, 3, 9}) {
    GenerateOptions g = greedy(12);
    std::vector<int64_t> through;
    g.on_prefill = [&](int64_t tokens) { return through.push_back(tokens), through.size() < passes; };
    const GenerateResult r = engine.generate(prompt, g);
    std::vector<int64_t> want{64, 128, 192};
    want.resize(std::min(passes, want.size()));
    EXPECT_EQ(through, want);
    if (passes > 3) {
      expect_same(r, whole, "never ended");
      continue;
    }
    EXPECT_EQ(r.finish_reason, FinishReason::cancelled) << passes;
    EXPECT_TRUE(r.tokens.empty() && r.text.empty()) << passes;
    EXPECT_EQ(r.prompt_tokens, 200);
  }
  expect_same(engine.generate(prompt, greedy(12)), whole, "behind a prompt that was ended");
}

TEST(Engine, SeedsChooseTheOutput) {
  Engine engine(engine_options("eagle", 4));
  GenerateOptions g{.temperature = 1, .seed = 7, .max_tokens = 24, .ignore_eos = true, .logits_digest = true};
  const GenerateResult seven = run(engine, kPrompts[0], g);
  expect_sane_statistics(seven, 4, "sampled");
  expect_same(run(engine, kPrompts[0], g), seven, "the same seed");
  g.seed = 8;
  EXPECT_NE(run(engine, kPrompts[0], g).tokens, seven.tokens);
  g.seed = uint64_t{7} << 32;
  EXPECT_NE(run(engine, kPrompts[0], g).tokens, seven.tokens) << "the high half of a seed counts";
  g.top_k = 1;
  EXPECT_EQ(run(engine, kPrompts[0], g).tokens, run(engine, kPrompts[0], greedy(24)).tokens) << "top_k 1 is greedy";
}

std::vector<int32_t> prompt_of(Engine& engine, size_t length) {
  std::string text;
  while (engine.tokenize(text).size() < length) text += "value = value + 1\n";
  std::vector<int32_t> ids = engine.tokenize(text);
  ids.resize(length);
  return ids;
}

TEST(Engine, ThePromptMustLeaveRoomInTheContext) {
  Engine engine(engine_options("eagle", 4, 64));
  for (const size_t length : {64, 65, 128, 500}) {
    for (const int64_t n : {int64_t{8}, std::numeric_limits<int64_t>::max()}) {
      try {
        engine.generate(prompt_of(engine, length), greedy(n));
        ADD_FAILURE() << length << " tokens were taken";
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::invalid_argument);
        const std::string text = e.what();
        EXPECT_NE(text.find("--context-length"), std::string::npos) << text;
        EXPECT_NE(text.find(std::to_string(length)), std::string::npos) << text;
        EXPECT_FALSE(std::regex_search(text, std::regex("-[0-9]"))) << "a negative number: " << text;
      }
    }
  }
  const GenerateResult last = engine.generate(prompt_of(engine, 63), greedy(8));
  EXPECT_EQ(last.tokens.size(), 1u) << "prompt and output are 64 tokens at most";
  EXPECT_EQ(last.finish_reason, FinishReason::context);
}

TEST(Engine, TheContextEndsTheOutput) {
  Engine wide(engine_options("none", 4, 128));
  for (const int64_t T : {1, 8}) {
    Engine engine(engine_options(T == 1 ? "none" : "eagle", T, 64));
    for (const size_t length : {40, 57, 62}) {
      const std::vector<int32_t> prompt = prompt_of(engine, length);
      const GenerateResult r = engine.generate(prompt, greedy(100));
      const std::string where = "T " + std::to_string(T) + " prompt of " + std::to_string(length);
      EXPECT_EQ(r.finish_reason, FinishReason::context) << where;
      EXPECT_EQ(r.prompt_tokens, static_cast<int64_t>(length)) << where;
      EXPECT_EQ(length + r.tokens.size(), 64u) << where << ": prompt and output fill the context";
      expect_sane_statistics(r, T, where);
      if (length != 57) continue;
      EXPECT_EQ(r.tokens, wide.generate(prompt, greedy(static_cast<int64_t>(r.tokens.size()))).tokens) << where;
      EXPECT_EQ(engine.generate(prompt, greedy(7)).finish_reason, FinishReason::length) << where;
    }
  }
}

TEST(Engine, RequestsAreIndependent) {
  Engine first(engine_options("ngram", 4)), second(engine_options("eagle", 8)), fresh(engine_options("none"));
  for (int round = 0; round < 2; round++) {
    for (const char* prompt : kPrompts) {
      const GenerateResult want = run(fresh, prompt, greedy(16));
      expect_same(run(first, prompt, greedy(16)), want, "ngram");
      expect_same(run(second, prompt, greedy(16)), want, "eagle");
    }
  }
  Engine moved(std::move(first));
  expect_same(run(moved, kPrompts[1], greedy(16)), run(second, kPrompts[1], greedy(16)), "a moved engine");
}

TEST(Engine, WorksOnAfterEveryRefusal) {
  Engine engine(engine_options("eagle", 4));
  const GenerateResult want = run(engine, kPrompts[0], greedy(6));
  const auto refused = [&](const std::string& what, const std::vector<int32_t>& prompt, const auto& change) {
    GenerateOptions g = greedy(6);
    change(g);
    for (int i = 0; i < 2; i++) EXPECT_THROW(engine.generate(prompt, g), Error) << what;
    expect_same(run(engine, kPrompts[0], greedy(6)), want, "after " + what);
  };
  const auto as_is = [](GenerateOptions&) {};
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  refused("an empty prompt", {}, as_is);
  for (const int32_t id : {-1, 4096, 4090, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()})
    refused("prompt id " + std::to_string(id), {1, id, 2}, as_is);
  for (const float bad : {-0.5f, nan, inf})
    refused("temperature", {1}, [=](GenerateOptions& g) { g.temperature = bad; });
  for (const float bad : {0.f, -1.f, 1.5f, nan}) refused("top_p", {1}, [=](GenerateOptions& g) { g.top_p = bad; });
  for (const float bad : {-0.1f, 1.1f, nan}) refused("min_p", {1}, [=](GenerateOptions& g) { g.min_p = bad; });
  refused("top_k", {1}, [](GenerateOptions& g) { g.top_k = -1; });
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()})
    refused("max_tokens", {1}, [=](GenerateOptions& g) { g.max_tokens = bad; });
  refused("an empty stop string", {1}, [](GenerateOptions& g) { g.stop = {"fine", ""}; });
  EXPECT_THROW(engine.generate(std::string_view(), greedy(4)), Error);
  EXPECT_THROW(engine.generate(std::vector<Message>{}, greedy(4)), Error);
  EXPECT_THROW(engine.generate(std::vector<Message>{{.role = "robot", .content = "hi"}}, greedy(4)), Error);
  struct Mine : std::exception {};
  for (int i = 0; i < 2; i++) {
    const auto throws = [](std::string_view) -> bool { throw Mine(); };
    EXPECT_THROW(engine.generate(std::string_view(kPrompts[1]), greedy(6), throws), Mine) << "from on_text";
  }
  expect_same(run(engine, kPrompts[0], greedy(6)), want, "after on_text threw");
}

TEST(Engine, InvalidBytesOfAPromptBecomeReplacements) {
  Engine engine(engine_options("none"));
  expect_same(run(engine, "x = '\xff\xc3'", greedy(4)), run(engine, "x = '\ufffd\ufffd'", greedy(4)), "replaced");
}

TEST(Engine, ChatIsTheRenderedPrompt) {
  Engine engine(engine_options("eagle", 4));
  const std::vector<Message> chat{{.role = "system", .content = "Be brief."}, {.role = "user", .content = " Hello! "}};
  const GenerateResult r = engine.generate(chat, greedy(12));
  const std::string prompt =
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n"
      "<|im_start|>assistant\n<think>\n\n</think>\n\n";
  expect_same(r, run(engine, prompt, greedy(12)), "chat");
  EXPECT_EQ(r.prompt_tokens, static_cast<int64_t>(engine.tokenize(prompt).size()));
}

TEST(Engine, RefusesOptionsByName) {
  struct Case {
    const char* names;
    void (*change)(EngineOptions&);
  };
  const Case cases[] = {
      {"nowhere", [](EngineOptions& o) { o.model = "nowhere"; }},
      {"backend", [](EngineOptions& o) { o.backend = "abacus"; }},
      {"threads", [](EngineOptions& o) { o.threads = -1; }},
      {"--speculative-algorithm", [](EngineOptions& o) { o.speculative_algorithm = "medusa"; }},
      {"--speculative-num-draft-tokens", [](EngineOptions& o) { o.speculative_num_draft_tokens = -1; }},
      {"--speculative-num-draft-tokens", [](EngineOptions& o) { o.speculative_num_draft_tokens = 257; }},
      {"--speculative-num-draft-tokens",
       [](EngineOptions& o) { o.speculative_num_draft_tokens = std::numeric_limits<int64_t>::max(); }},
      {"--linear-replayssm-cache-len", [](EngineOptions& o) { o.linear_replayssm_cache_len = 24; }},
      {"--linear-replayssm-cache-len", [](EngineOptions& o) { o.linear_replayssm_cache_len = -16; }},
      {"--linear-replayssm-cache-len",
       [](EngineOptions& o) { o.speculative_num_draft_tokens = 8, o.linear_replayssm_cache_len = 16; }},
      {"--fold-grain", [](EngineOptions& o) { o.fold_grain = 12; }},
      {"--fold-policy", [](EngineOptions& o) { o.fold_policy = "never"; }},
      {"--mamba-ssm-dtype", [](EngineOptions& o) { o.mamba_ssm_dtype = "float8"; }},
      {"--kv-cache-dtype", [](EngineOptions& o) { o.kv_cache_dtype = "auto"; }},
      {"--context-length", [](EngineOptions& o) { o.context_length = -1; }},
      {"--context-length", [](EngineOptions& o) { o.context_length = 8193; }},
      {"--chunked-prefill-size", [](EngineOptions& o) { o.chunked_prefill_size = 0; }},
      {"--chunked-prefill-size", [](EngineOptions& o) { o.chunked_prefill_size = -64; }},
      {"--chunked-prefill-size", [](EngineOptions& o) { o.chunked_prefill_size = 100; }}};
  for (const Case& c : cases) {
    EngineOptions o = engine_options("eagle", 4);
    c.change(o);
    try {
      Engine engine(o);
      ADD_FAILURE() << c.names << " was taken";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(c.names), std::string::npos) << e.what();
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << "one line: " << e.what();
    }
  }
}

TEST(Engine, ReportsProgressNoticesAndSizes) {
  EngineOptions o = engine_options("eagle", 8);
  o.threads = 2;
  std::vector<double> progress;
  std::vector<std::string> notices;
  o.on_progress = [&](double fraction) { progress.push_back(fraction); };
  o.on_notice = [&](const std::string& notice) { notices.push_back(notice); };
  const Engine engine(o);
  const EngineInfo& info = engine.info();
  ASSERT_FALSE(progress.empty());
  EXPECT_EQ(progress.front(), 0);
  EXPECT_EQ(progress.back(), 1);
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
  EXPECT_EQ(notices, info.notices);
  EXPECT_EQ(info.T, 8);
  EXPECT_EQ(info.R, 32);
  EXPECT_EQ(info.F, 8);
  EXPECT_EQ(info.context_length, 512);
  EXPECT_EQ(info.vocabulary, 4096);
  EXPECT_EQ(info.threads, 2);
  EXPECT_EQ(info.checkpoint_bytes, 6 * 6 * 128 * 128 * 4);
  EXPECT_EQ(info.record_bytes, 6 * 32 * ((2 + 6) * 128 * 4 + 2 * 6 * 4));
  EXPECT_EQ(info.conv_bytes, 6 * 32 * (2 * 2 + 6) * 128 * 4);
  EXPECT_EQ(info.kv_bytes_per_token, (2 + 1) * 2 * 2 * 64 * 4) << "two attention layers and the MTP head's";
  EXPECT_GT(info.snapshot_bytes, 3 * (info.checkpoint_bytes + info.record_bytes + info.conv_bytes));
  EXPECT_FLOAT_EQ(info.temperature, 1);
  EXPECT_FLOAT_EQ(info.top_p, 0.95f);
  EXPECT_EQ(info.top_k, 20);
}

}  // namespace
}  // namespace deltaring::test
