// The long scans: every T, ring, grain, policy and dtype against plain decoding; stop strings all over the text.
#include "engine/stop_strings.h"

namespace deltaring::test {
namespace {

TEST(EngineFull, SpeculationChangesNothingForAnyWindowAndRing) {
  for (const int64_t F : {8, 16}) {
    EngineOptions none = engine_options("none");
    none.fold_grain = F;
    Engine plain(none);
    std::vector<GenerateResult> want;
    for (const char* prompt : kPrompts) want.push_back(run(plain, prompt, greedy(60)));
    for (const char* algorithm : {"ngram", "eagle"}) {
      for (int64_t T = 1; T <= 16; T++) {
        EngineOptions o = engine_options(algorithm, T);
        o.fold_grain = F;
        o.linear_replayssm_cache_len = T % 2 ? 0 : 64;
        Engine engine(o);
        for (size_t i = 0; i < want.size(); i++) {
          const std::string where = std::string(algorithm) + " T " + std::to_string(T) + " F " + std::to_string(F);
          const GenerateResult got = run(engine, kPrompts[i], greedy(60));
          expect_same(got, want[i], where);
          expect_sane_statistics(got, T, where);
        }
      }
    }
  }
}

TEST(EngineFull, EveryCheckpointDtypeAndPolicyDecodesAlike) {
  for (const char* policy : {"grid", "every"}) {
    for (const char* dtype : {"float32", "bfloat16", "float16"}) {
      if (std::string(policy) == "every" && std::string(dtype) != "float32") continue;  // no bit promise
      for (const int64_t F : {8, 16}) {
        for (const char* kv : {"float32", "bfloat16", "float16"}) {
          EngineOptions o = engine_options("eagle", 5);
          o.fold_policy = policy, o.mamba_ssm_dtype = dtype, o.fold_grain = F, o.kv_cache_dtype = kv;
          Engine engine(o);
          GenerateOptions g = greedy(80);
          const GenerateResult on = run(engine, kPrompts[0], g);
          g.speculate = false;
          const std::string where = std::string(policy) + " " + dtype + " F " + std::to_string(F) + " kv " + kv;
          expect_same(on, run(engine, kPrompts[0], g), where);
          EXPECT_GT(on.accepted, 0) << where;
        }
      }
    }
  }
}

// The chunk cuts a prompt, threads share it out; neither may reach a bit.
TEST(EngineFull, ChunksAndThreadsChangeNothing) {
  std::string prompt;
  for (int i = 0; i < 30; i++)
    prompt += "def f" + std::to_string(i) + "(x):\n    return x + " + std::to_string(i) + "\n";
  GenerateResult want;
  for (const int64_t chunk : {64, 128, 256, 512}) {
    for (const int threads : {1, 2, 3}) {
      EngineOptions o = engine_options("eagle", 4, 1024);
      o.chunked_prefill_size = chunk, o.threads = threads;
      Engine engine(o);
      const GenerateResult got = run(engine, prompt, greedy(24));
      ASSERT_GT(got.prompt_tokens, 256);
      if (want.tokens.empty()) want = got;
      expect_same(got, want, "chunk " + std::to_string(chunk) + " threads " + std::to_string(threads));
    }
  }
}

TEST(EngineFull, StopStringsAllOverTheText) {
  for (const char* algorithm : {"ngram", "eagle"}) {
    Engine engine(engine_options(algorithm, 8));
    int64_t cut_blocks = 0;
    for (const char* prompt : kPrompts) cut_blocks += check_stop_strings(engine, prompt, 40, 3, {1, 2, 3, 4, 6, 11});
    EXPECT_GT(cut_blocks, 10) << algorithm;
  }
}

}  // namespace
}  // namespace deltaring::test
