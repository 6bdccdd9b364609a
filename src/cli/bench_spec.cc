#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/prompt_file.h"
#include "cli/spec_report.h"
#include "engine/drafters.h"

namespace deltaring::cli {

namespace {

struct Flags {
  EngineOptions engine;
  SamplingFlags sampling;
  std::string prompts, svg;
  std::vector<std::string> drafters{"ngram"}, categories;
  uint64_t num_prompts = 0;
  bool chat = false, json = false;
};

// Those of the categories that were asked for, of each at most num_prompts.
std::vector<BenchPrompt> chosen_prompts(const Flags& flags) {
  std::vector<BenchPrompt> chosen;
  std::map<std::string, uint64_t> taken;
  std::vector<std::string> known;
  for (const BenchPrompt& prompt : read_prompts(flags.prompts)) {
    uint64_t& count = taken[prompt.category];
    const auto& wanted = flags.categories;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), prompt.category) == wanted.end()) continue;
    if (flags.num_prompts == 0 || count < flags.num_prompts) chosen.push_back(prompt);
    count++;
  }
  for (const auto& [category, count] : taken) known.push_back(category);
  for (const std::string& category : flags.categories) {
    check(taken.contains(category), "--category {}: the file has {}", category, fmt::join(known, ", "));
  }
  return chosen;
}

GenerateResult answer(Engine& engine, const Flags& flags, const BenchPrompt& prompt, const GenerateOptions& o) {
  if (!flags.chat) return engine.generate(std::string_view(prompt.text), o);
  return engine.generate(std::vector<Message>{{.role = "user", .content = prompt.text}}, o);
}

// The first pass over code and data takes longer than all others: it is left out, as is all behind a ^C.
void warm_up(Engine& engine, const Flags& flags, const BenchPrompt& prompt, GenerateOptions o) {
  o.max_tokens = 8;
  answer(engine, flags, prompt, o);
}

SpecRun run_drafter(const Flags& flags, const std::string& drafter, const std::vector<BenchPrompt>& prompts) {
  EngineOptions options = flags.engine;
  const bool folder = needs_folder(drafter);
  (folder ? options.speculative_draft_model_path : options.speculative_algorithm) = drafter;
  // A window that none has is no reason to refuse the baseline.
  if (drafter == "none") options.ragged_verify_mode = "static", options.simulate_acceptance_length = 0;
  Engine engine(options);
  SpecRun run{.drafter = drafter, .info = engine.info(), .categories = {}};
  catch_interrupts();
  GenerateOptions o = flags.sampling.resolved(run.info);
  o.on_prefill = o.on_step = [](int64_t) { return !interrupted(); };
  if (!interrupted()) warm_up(engine, flags, prompts.front(), o);
  for (const BenchPrompt& prompt : prompts) {
    if (interrupted()) break;
    const GenerateResult result = answer(engine, flags, prompt, o);
    if (result.finish_reason != FinishReason::cancelled) run.categories[prompt.category].add(result);
  }
  const SpecTally all = run.overall();
  if (drafter != "none" && all.steps > 0 && all.pooled_length() < 1.05) {
    fmt::print(stderr, "notice: {} drafts next to nothing that the model keeps ({:.2f} tokens a step)\n", drafter,
               all.pooled_length());
  }
  return run;
}

// Before the work; what is there stays until there is a plot, and what is not there, if only behind a link, does not
// come into being.
void check_writable(const std::string& svg) {
  if (svg.empty()) return;
  std::error_code ignored;  // what cannot be looked at cannot be written either
  const bool there = std::filesystem::status(svg, ignored).type() != std::filesystem::file_type::not_found;
  check(std::ofstream(svg, std::ios::app).good(), "--svg {}: cannot be written; a file in a folder that exists works",
        svg);
  if (!there) std::filesystem::remove(std::filesystem::canonical(svg, ignored), ignored);
}

int bench_spec(Flags& flags) {
  const std::vector<BenchPrompt> prompts = chosen_prompts(flags);
  std::error_code ignored;  // a folder that cannot be looked at counts as missing
  for (const std::string& drafter : flags.drafters) {
    check(!needs_folder(drafter) || std::filesystem::is_directory(drafter, ignored),
          "--drafter {}: there is no such folder, and of names {} work", drafter, fmt::join(kAlgorithmsAlone, ", "));
  }
  const bool drafted = std::ranges::any_of(flags.drafters, [](const std::string& name) { return name != "none"; });
  if (!drafted) check_drafted(flags.engine, "--drafter ngram");
  check_writable(flags.svg);
  if (!flags.json) report_loading(flags.engine);
  SpecReport report{.model = flags.engine.model,
                    .prompts = flags.prompts,
                    .options = {},
                    .chat = flags.chat,
                    .planned = static_cast<int64_t>(flags.drafters.size() * prompts.size())};
  for (const std::string& drafter : flags.drafters) {
    if (interrupted()) break;
    SpecRun run = run_drafter(flags, drafter, prompts);
    // The first stays without requests too: it says what was to run.
    if (report.runs.empty() || run.overall().requests > 0) report.runs.push_back(std::move(run));
  }
  report.interrupted = interrupted();
  report.options = flags.sampling.resolved(report.runs.front().info);
  fmt::print("{}", flags.json ? to_json(report) + "\n" : table(report));
  flush_output();
  if (report.interrupted) return kInterrupted;
  if (!flags.svg.empty()) {
    std::ofstream svg(flags.svg);
    svg << to_svg(report) << std::flush;
    check(svg.good(), "--svg {}: could not be written to its end; a disk with room works", flags.svg);
  }
  return kSuccess;
}

}  // namespace

void add_bench_spec(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "bench-spec", "Acceptance and speed of drafters on a prompt file in SPEED-Bench's format, by category");
  add_state_flags(*command, flags->engine);
  add_window_flags(*command, flags->engine);
  add_run_flags(*command, flags->engine);
  command->add_option("--prompts", flags->prompts, "JSON lines with category and turns; the first turn is used")
      ->required();
  command
      ->add_option("--drafter", flags->drafters,
                   "none, ngram, suffix, eagle or the folder of a DFlash, DFlash 2 or DSpark drafter; several, with "
                   "commas, run in turn")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--category", flags->categories, "these categories only; may be repeated")->delimiter(',');
  add_number(*command, "--num-prompts", flags->num_prompts, "of each category at most so many; 0 = all", 3)
      ->capture_default_str();
  command->add_flag("--chat", flags->chat, "send prompts as user turns in the model's chat format");
  add_sampling_flags(*command, flags->sampling);
  add_number(*command, "--simulate-acceptance-length", flags->engine.simulate_acceptance_length,
             "for measuring time alone: every step emits that many tokens on average, right or wrong; 0 = off", 3)
      ->capture_default_str();
  command->add_flag("--json", flags->json, "print one JSON object instead of a table");
  command->add_option("--svg", flags->svg, "also write a plot to this file");
  command->callback([flags, &exit_code] { exit_code = bench_spec(*flags); });
}

}  // namespace deltaring::cli
