// The subcommands. Each adds itself to the app; its callback sets the exit code.
#pragma once
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "deltaring/engine.h"

namespace deltaring::cli {

enum ExitCode { kSuccess = 0, kFailedCheck = 1, kBadInput = 2, kInterrupted = 130 };

void add_generate(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_plan(CLI::App& app, int& exit_code);
void add_bench_spec(CLI::App& app, int& exit_code);

// The flags that describe an engine: its model and state, how it speculates, how it runs.
void add_state_flags(CLI::App& command, EngineOptions& options);
void add_speculation_flags(CLI::App& command, EngineOptions& options);  // the next two among them
void add_drafter_flag(CLI::App& command, EngineOptions& options);
void add_window_flags(CLI::App& command, EngineOptions& options);
void add_prefill_flags(CLI::App& command, EngineOptions& options);
void add_run_flags(CLI::App& command, EngineOptions& options);  // add_prefill_flags among them
// Throws Error for flags that say how to draft where nothing drafts; `works` makes something draft.
void check_drafted(const EngineOptions& options, const char* works = "--speculative-algorithm ngram");

// How tokens are drawn and when they end; what is not given comes from the model.
struct SamplingFlags {
  GenerateOptions options;
  std::optional<float> temperature, top_p;
  std::optional<int32_t> top_k;
  std::vector<std::string> logit_bias;  // ID=BIAS

  // Throws Error naming --logit-bias for words that are no such pair.
  GenerateOptions resolved(const EngineInfo& info) const;
};
void add_sampling_flags(CLI::App& command, SamplingFlags& flags);
std::string describe_sampling(const GenerateOptions& options);  // in a few words

// Of an optional, or the number itself.
template <class Value>
using NumberOf = typename decltype(std::optional(std::declval<Value&>()))::value_type;

// What is asked of a T, behind a number that `does_not_fit` one.
template <class T>
std::string wanted(bool does_not_fit) {
  using Limits = std::numeric_limits<T>;
  if constexpr (!std::is_integral_v<T>) {
    return does_not_fit ? "a number, neither too large nor too close to 0" : "a number";
  } else {
    if (does_not_fit) return fmt::format("a whole number from {} to {}", Limits::min(), Limits::max());
    return std::is_unsigned_v<T> ? "a whole number from 0 on" : "a whole number";
  }
}

// An option for a number that must be given as one and fit its type: CLI11 alone takes "-1" for an unsigned and cuts
// what is too large. An error names `works`.
template <class Value>
CLI::Option* add_number(CLI::App& command, const std::string& name, Value& value, const std::string& description,
                        NumberOf<Value> works) {
  using T = NumberOf<Value>;
  CLI::Option* option = command.add_option(name, value, description);
  return option->check([option, works](const std::string& text) {
    T parsed;
    const bool plus = text.starts_with('+') && !text.starts_with("+-");  // from_chars takes none, CLI11 does
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + plus, end, parsed);
    check(error == std::errc() && rest == end, "{} {}: {}; {} works", option->get_name(), text,
          wanted<T>(error == std::errc::result_out_of_range), works);
    return std::string();
  });
}

// Reports notices and a progress bar on standard error, the bar only on a terminal.
void report_loading(EngineOptions& options);

// Throws Error when standard output could not take everything: a full disk, a closed pipe.
void flush_output();

}  // namespace deltaring::cli
