// What a run of bench-spec found, by drafter and category, and its forms: a table, JSON, a plot.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "deltaring/engine.h"

namespace deltaring::cli {

// Sums over requests. The token of the prefill counts in no acceptance length; a step whose drafts a stop cuts counts
// as it was accepted.
struct SpecTally {
  int64_t requests = 0, completion_tokens = 0;
  int64_t steps = 0, step_tokens = 0, drafted = 0, accepted = 0;
  double request_lengths = 0, request_rates = 0;  // sums over the requests that have steps
  int64_t requests_with_steps = 0;
  std::vector<int64_t> drafted_at, accepted_at;  // [T-1]

  void add(const GenerateResult& result);
  void add(const SpecTally& other);

  double pooled_length() const;               // tokens of all steps / all steps: vLLM's and SGLang's figure
  double mean_request_length() const;         // mean over requests of their own: specdec_bench's Average_AL
  double acceptance_rate() const;             // accepted / drafted
  double decode_rate() const;                 // mean over requests of tokens behind the first / time behind the first
  double step_rate() const;                   // decode_rate / pooled_length
  std::vector<double> acceptance_at() const;  // [T-1] accepted there / drafted there
};

struct SpecRun {
  std::string drafter;
  EngineInfo info;
  std::map<std::string, SpecTally> categories;

  SpecTally overall() const;
};

struct SpecReport {
  std::string model, prompts;
  GenerateOptions options;
  bool chat = false;  // prompts are user turns
  int64_t concurrency = 1;
  std::vector<SpecRun> runs;
  int64_t planned = 0;       // requests of all runs
  bool interrupted = false;  // then there may be fewer, of fewer runs

  int64_t requests() const;  // that are in it
};

std::string table(const SpecReport& report);
std::string to_json(const SpecReport& report);
std::string to_svg(const SpecReport& report);

}  // namespace deltaring::cli
