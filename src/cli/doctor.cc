#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>

#include "base/error.h"
#include "cli/commands.h"
#include "engine/drafters.h"
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

// What can draft, and in windows of which T.
struct Drafter {
  std::string algorithm, folder;
  std::set<int64_t> windows{2, 4, 8};
};

// What the folders hold; an engine that runs has weights of its own.
struct Loaded {
  Weights model;
  std::optional<BlockWeights> block;
};

Loaded load(EngineOptions o) {
  const ModelConfig config = load_model_config(o.model);
  const std::optional<BlockConfig> block = resolve_drafter(o, config);
  Loaded loaded{.model = load_weights(o.model, config), .block = {}};
  if (block) loaded.block = load_block_weights(o.speculative_draft_model_path, *block);
  return loaded;
}

std::vector<Drafter> drafters_of(const EngineOptions& o, const Loaded& loaded) {
  std::vector<Drafter> drafters{{.algorithm = "ngram"}};
  if (loaded.model.mtp) drafters.push_back({.algorithm = "eagle"});
  if (!loaded.block) return drafters;
  const BlockConfig& block = loaded.block->config;
  Drafter drafter{.algorithm = name_of(block.kind()), .folder = o.speculative_draft_model_path};
  drafter.windows.insert(block.window());
  std::erase_if(drafter.windows, [&](int64_t T) { return T > block.window(); });
  drafters.push_back(drafter);
  return drafters;
}

// `whose` are the weights.
template <class AnyWeights>
void check_weights(const char* whose, const AnyWeights& weights, Checks& checks) {
  const std::vector<NonFinite> bad = non_finite(weights);
  checks.add(bad.empty(), bad.empty() ? fmt::format("every weight of the {} is finite", whose)
                                      : fmt::format("{} tensors of the {} hold NaN or infinity, first {}", bad.size(),
                                                    whose, bad.front().name));
}

// Speculation on, off, and on again must give the same tokens and the same bits of logits.
void check_drafter(EngineOptions o, const Drafter& drafter, int64_t T, int64_t max_tokens, Checks& checks) {
  o.speculative_algorithm = drafter.algorithm;
  o.speculative_draft_model_path = drafter.folder;
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
          drafter.algorithm, T, tokens,
          differing == 0 ? "equal bit for bit" : fmt::format("{} of {} prompts differ", differing, std::size(kPrompts)),
          accepted, steps));
}

int doctor(Flags& flags) {
  std::optional<Loaded> loaded = load(flags.engine);
  const std::vector<Drafter> drafters = drafters_of(flags.engine, *loaded);
  report_loading(flags.engine);
  flags.engine.on_notice = {};
  fmt::print("{}\n", flags.engine.model);
  Checks checks;
  check_weights("model", loaded->model, checks);
  if (loaded->block) check_weights("drafter", *loaded->block, checks);
  loaded.reset();
  for (const Drafter& drafter : drafters) {
    for (const int64_t T : drafter.windows) {
      try {
        check_drafter(flags.engine, drafter, T, flags.max_tokens, checks);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::corrupt) throw;
        checks.add(false, fmt::format("{} T={}: {}", drafter.algorithm, T, error.what()));
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
  add_drafter_flag(*command, flags->engine);
  add_run_flags(*command, flags->engine);
  add_number(*command, "--max-tokens,-n", flags->max_tokens, "tokens a prompt", 64)->capture_default_str();
  command->callback([flags, &exit_code] { exit_code = doctor(*flags); });
}

}  // namespace deltaring::cli
