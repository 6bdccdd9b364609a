// What speculation gains end to end: the tiny model, its 64 held-out prompts, greedy and sampled, against plain
// decoding in the same run. Each line decodes the same tokens twice, so speed is compared at equal output.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "deltaring/engine.h"

namespace {

using namespace deltaring;

constexpr int64_t kOutput = 128;  // tokens a prompt

std::vector<std::vector<int32_t>> prompts() {
  std::vector<std::vector<int32_t>> all;
  const auto file = nlohmann::json::parse(std::ifstream(DELTARING_SOURCE_DIR "/bench/prompts/held_out.json"));
  for (const auto& prompt : file["prompts"]) all.push_back(prompt["ids"]);
  return all;
}

struct Case {
  const char* algorithm;
  int64_t T, F;
  float temperature;
};

void speculation(benchmark::State& state, Case c) {
  Engine engine({.model = DELTARING_SOURCE_DIR "/models/tiny-py",
                 .speculative_algorithm = c.algorithm,
                 .speculative_num_draft_tokens = c.T,
                 .fold_grain = c.F});
  const auto all = prompts();
  double spec_seconds = 0, plain_seconds = 0, prefill_seconds = 0;
  int64_t tokens = 0, plain_tokens = 0, steps = 0, step_tokens = 0, prompt_tokens = 0, differing = 0;
  for (auto _ : state) {
    for (size_t i = 0; i < all.size(); i++) {
      GenerateOptions o{.temperature = c.temperature, .seed = i, .max_tokens = kOutput, .ignore_eos = true};
      const GenerateResult on = engine.generate(all[i], o);
      o.speculate = false;
      const GenerateResult off = engine.generate(all[i], o);
      spec_seconds += on.decode_seconds, plain_seconds += off.decode_seconds, prefill_seconds += off.prefill_seconds;
      tokens += static_cast<int64_t>(on.tokens.size()) - 1, plain_tokens += static_cast<int64_t>(off.tokens.size()) - 1;
      prompt_tokens += off.prompt_tokens, steps += on.verify_steps, step_tokens += on.step_tokens;
      differing += on.tokens != off.tokens;
    }
  }
  const double rate = static_cast<double>(tokens) / spec_seconds,
               plain_rate = static_cast<double>(plain_tokens) / plain_seconds;
  state.counters["tok/s"] = rate;
  state.counters["plain_tok/s"] = plain_rate;
  state.counters["speedup"] = rate / plain_rate;
  state.counters["acceptance_length"] = static_cast<double>(step_tokens) / static_cast<double>(steps);
  state.counters["steps/s"] = static_cast<double>(steps) / spec_seconds;
  state.counters["prefill_tok/s"] = static_cast<double>(prompt_tokens) / prefill_seconds;
  state.counters["differing_outputs"] = static_cast<double>(differing);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Case> cases;
  for (const char* algorithm : {"ngram", "suffix"}) {
    for (const int64_t T : {4, 8}) cases.push_back({algorithm, T, 8, 0});
  }
  for (const int64_t T : {2, 3, 4, 6, 8}) cases.push_back({"eagle", T, 8, 0});
  cases.push_back({"eagle", 4, 16, 0});
  for (const char* algorithm : {"ngram", "eagle"}) cases.push_back({algorithm, 4, 8, 1});
  for (const Case& c : cases) {
    const std::string name = fmt::format("{}/T={}/F={}/temperature={:g}", c.algorithm, c.T, c.F, c.temperature);
    benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { speculation(state, c); })
        ->Iterations(1)
        ->Unit(benchmark::kSecond)
        ->UseRealTime();
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
