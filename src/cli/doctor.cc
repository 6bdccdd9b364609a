#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "model/weights.h"

namespace deltaring::cli {

namespace {

struct Flags {
  EngineOptions engine;
  int64_t max_tokens = 64;
};

// Different enough that drafts are right in one and wrong in another.
constexpr const char* kPrompts[] = {"def fibonacci(n):\n",
                                    "The quick brown fox jumps over the lazy dog. The quick brown fox",
                                    "1 2 3 4 5 6 7 8 9 10 11 12", "import os\nimport sys\n\nclass "};

class Checks {
 public:
  void add(bool ok, const std::string& what) {
    fmt::print("  {}  {}\n", ok ? "ok  " : "FAIL", what);
    std::fflush(stdout);
    failed_ += !ok;
  }
  int failed() const { return failed_; }

 private:
  int failed_ = 0;
};

bool has_mtp(const EngineOptions& o) {
  const ModelConfig config = load_model_config(o.model);
  return load_weights(o.model, config).mtp.has_value();
}

void check_weights(const EngineOptions& o, Checks& checks) {
  const ModelConfig config = load_model_config(o.model);
  const std::vector<NonFinite> bad = non_finite(load_weights(o.model, config));
  checks.add(bad.empty(), bad.empty()
                              ? "every weight is finite"
                              : fmt::format("{} tensors hold NaN or infinity, first {}", bad.size(), bad.front().name));
}

// Speculation on, off, and on again must give the same tokens and the same bits of logits.
void check_algorithm(EngineOptions o, const std::string& algorithm, int64_t T, int64_t max_tokens, Checks& checks) {
  o.speculative_algorithm = algorithm;
  o.speculative_num_draft_tokens = T;
  o.linear_replayssm_cache_len = 0;
  Engine engine(o);
  int64_t tokens = 0, accepted = 0, steps = 0, differing = 0;
  for (const char* prompt : kPrompts) {
    GenerateOptions g{.max_tokens = max_tokens, .ignore_eos = true, .logits_digest = true};
    const GenerateResult on = engine.generate(std::string_view(prompt), g);
    const GenerateResult again = engine.generate(std::string_view(prompt), g);
    g.speculate = false;
    const GenerateResult off = engine.generate(std::string_view(prompt), g);
    const auto same = [](const GenerateResult& a, const GenerateResult& b) {
      return a.tokens == b.tokens && a.logits_digest == b.logits_digest;
    };
    differing += !same(on, off) || !same(on, again);
    tokens += static_cast<int64_t>(on.tokens.size()), accepted += on.accepted, steps += on.verify_steps;
  }
  checks.add(
      differing == 0,
      fmt::format(
          "{} T={}: {} tokens with and without speculation, {}; {} of them from accepted drafts, {} verify steps",
          algorithm, T, tokens,
          differing == 0 ? "equal bit for bit" : fmt::format("{} of {} prompts differ", differing, std::size(kPrompts)),
          accepted, steps));
}

int doctor(Flags& flags) {
  std::vector<std::string> algorithms{"ngram"};
  if (has_mtp(flags.engine)) algorithms.push_back("eagle");
  report_loading(flags.engine);
  flags.engine.on_notice = {};
  fmt::print("{}\n", flags.engine.model);
  Checks checks;
  check_weights(flags.engine, checks);
  for (const std::string& algorithm : algorithms) {
    for (const int64_t T : {2, 4, 8}) {
      try {
        check_algorithm(flags.engine, algorithm, T, flags.max_tokens, checks);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::corrupt) throw;
        checks.add(false, fmt::format("{} T={}: {}", algorithm, T, error.what()));
      }
    }
  }
  const bool healthy = checks.failed() == 0;
  fmt::print("{}\n", healthy ? "healthy: on this machine speculation changes nothing of the greedy output but its speed"
                             : fmt::format("{} checks failed", checks.failed()));
  flush_output();
  return healthy ? kSuccess : kFailedCheck;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Check model and machine: speculation on and off must give the same tokens, bit for bit");
  add_state_flags(*command, flags->engine);
  add_run_flags(*command, flags->engine);
  add_number(*command, "--max-tokens,-n", flags->max_tokens, "tokens a prompt", 64)->capture_default_str();
  command->callback([flags, &exit_code] { exit_code = doctor(*flags); });
}

}  // namespace deltaring::cli
