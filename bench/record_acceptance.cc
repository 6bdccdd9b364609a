// record_acceptance: how many tokens each verify step kept, for benches that replay acceptance instead of inventing it.
// Decodes the tiny model's held-out prompts and prints JSON: one recording an argument, DRAFTER:T as in eagle:8.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "deltaring/engine.h"

namespace deltaring::bench {
namespace {

using nlohmann::json;

constexpr int64_t kOutput = 128;  // tokens a prompt

// Steps that had room for a whole window; the last ones are cut by the end of the output, which says nothing.
std::vector<int32_t> whole_windows(const GenerateResult& result, int64_t T) {
  std::vector<int32_t> kept;
  int64_t left = kOutput - 1;  // the first token is the prefill's
  for (const int32_t length : result.step_lengths) {
    if (left < T) break;
    kept.push_back(length), left -= length;
  }
  return kept;
}

json record(const json& prompts, const std::string& algorithm, int64_t T) {
  Engine engine({.model = DELTARING_SOURCE_DIR "/models/tiny-py",
                 .speculative_algorithm = algorithm,
                 .speculative_num_draft_tokens = T});
  json sequences = json::array();
  int64_t steps = 0, tokens = 0;
  for (const json& prompt : prompts) {
    const GenerateOptions greedy{.max_tokens = kOutput, .ignore_eos = true};
    const std::vector<int32_t> kept = whole_windows(engine.generate(prompt["ids"], greedy), T);
    for (const int32_t length : kept) steps++, tokens += length;
    sequences.push_back({{"category", prompt["category"]}, {"kept", kept}});
  }
  return {{"drafter", algorithm},
          {"T", T},
          {"mean", static_cast<double>(tokens) / static_cast<double>(steps)},
          {"sequences", sequences}};
}

void run(const std::vector<std::string>& asked) {
  const json prompts = json::parse(std::ifstream(DELTARING_SOURCE_DIR "/bench/prompts/held_out.json"))["prompts"];
  fmt::print(
      "{{\"note\": \"tokens kept by each verify step, anchor included: models/tiny-py decodes {} tokens greedily "
      "behind "
      "each of bench/prompts/held_out.json; printed by record_acceptance {}\",\n \"recordings\": [\n",
      kOutput, fmt::join(asked, " "));
  const char* separator = "";
  for (const std::string& argument : asked) {
    const size_t colon = argument.find(':');
    if (colon == std::string::npos)
      throw Error(ErrorKind::invalid_argument, argument + ": DRAFTER:T as in eagle:8 works");
    const json recording = record(prompts, argument.substr(0, colon), std::stoll(argument.substr(colon + 1)));
    fmt::print("{}{}", std::exchange(separator, ",\n"), recording.dump());
  }
  fmt::print("\n]}}\n");
}

}  // namespace
}  // namespace deltaring::bench

int main(int argc, char** argv) {
  try {
    deltaring::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "record_acceptance: " << error.what() << "\n";
    return 1;
  }
}
