#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "model/utf8.h"

namespace deltaring::cli {

namespace {

using nlohmann::json;

struct Flags {
  EngineOptions engine;
  std::optional<std::string> prompt, prompt_file, system;
  bool chat = false, json = false, compare = false, quiet = false;
  SamplingFlags sampling;
  const CLI::Option* logprobs = nullptr;
};

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop_token:
      return "stop_token";
    case FinishReason::stop_string:
      return "stop_string";
    case FinishReason::length:
      return "length";
    case FinishReason::context:
      return "context";
    case FinishReason::cancelled:
      return "cancelled";
  }
  return "";
}

double rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

// Tokens behind the first, over the time behind the first.
double decode_rate(const GenerateResult& r) {
  return r.tokens.empty() ? 0 : rate(static_cast<double>(r.tokens.size()) - 1, r.decode_seconds);
}

double prefill_rate(const GenerateResult& r) {
  return r.tokens.empty() ? 0 : rate(static_cast<double>(r.prompt_tokens), r.prefill_seconds);
}

double acceptance_length(const GenerateResult& r) {
  return rate(static_cast<double>(r.step_tokens), static_cast<double>(r.verify_steps));
}

std::string read_prompt(const Flags& flags) {
  std::string text;
  if (flags.prompt) {
    text = *flags.prompt;
  } else if (flags.prompt_file && *flags.prompt_file != "-") {
    std::ifstream file(*flags.prompt_file, std::ios::binary);
    if (!file || std::filesystem::is_directory(*flags.prompt_file)) {
      fail(ErrorKind::not_found, "--prompt-file {}: cannot be read; a readable text file or - for standard input works",
           *flags.prompt_file);
    }
    text.assign(std::istreambuf_iterator<char>(file), {});
  } else {
    if (isatty(STDIN_FILENO)) fmt::print(stderr, "the prompt is read from here; ^D on a line of its own ends it\n");
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  check(!text.empty(), "the prompt is empty; --prompt 'def ' works");
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = first_unit(std::string_view(text).substr(at));
    check(unit.kind == Utf8::valid, "the prompt is not UTF-8 at byte {} (0x{:02x}); UTF-8 text works", at,
          static_cast<unsigned char>(text[at]));
    at += unit.length;
  }
  return text;
}

// on_first runs before the first text is shown.
GenerateResult run(Engine& engine, const Flags& flags, const std::string& prompt, const GenerateOptions& options,
                   bool stream, std::function<void()> on_first) {
  const Engine::OnText on_text = [&](std::string_view text) {
    if (on_first) std::exchange(on_first, nullptr)();
    if (stream) std::fwrite(text.data(), 1, text.size(), stdout), std::fflush(stdout);
    return !interrupted();
  };
  if (!flags.chat) return engine.generate(prompt, options, on_text);
  std::vector<Message> messages;
  if (flags.system) messages.push_back({.role = "system", .content = *flags.system});
  messages.push_back({.role = "user", .content = prompt});
  return engine.generate(messages, options, on_text);
}

void print_header(const EngineInfo& info, const Flags& flags, const GenerateOptions& o) {
  const std::string mode = flags.engine.ragged_verify_mode == "static" ? "" : ", " + flags.engine.ragged_verify_mode;
  const std::string adaptive = flags.engine.speculative_adaptive ? " at most" : "";
  const std::string drafts = info.drafter == "none" ? "no speculation"
                                                    : fmt::format("{}, T={} (anchor + {} drafts{}{})", info.drafter,
                                                                  info.T, info.T - 1, adaptive, mode);
  const std::string rollback = info.state_rollback == "snapshot"
                                   ? "state snapshots"
                                   : fmt::format("ring R={}, F={}, {}", info.R, info.F, flags.engine.fold_policy);
  fmt::print(stderr, "{}: {:.1f} M parameters, {}, {} threads; {}; {}; {}\n\n", flags.engine.model,
             static_cast<double>(info.parameters) / 1e6, info.backend, info.threads, drafts, rollback,
             describe_sampling(o));
}

bool same_output(const GenerateResult& a, const GenerateResult& b) {
  return a.tokens == b.tokens && a.logits_digest == b.logits_digest;
}

// Drafts that are drawn from a law bring coins of their own; everything else must come out the same.
bool may_differ(const EngineInfo& info, const GenerateOptions& options) {
  return options.temperature > 0 && info.drafts_are_drawn && info.T > 1;
}

void print_state(const EngineInfo& info) {
  const auto size = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  std::string state;
  if (info.state_rollback == "snapshot") {
    state = fmt::format("{} (live state {}, {} snapshots of it, conv {})", size(info.snapshot_bytes),
                        size(info.checkpoint_bytes), info.T > 1 ? info.T : 0, size(info.conv_bytes));
  } else {
    state = fmt::format("{} (checkpoint {}, ring {}, conv {})",
                        size(info.checkpoint_bytes + info.record_bytes + info.conv_bytes), size(info.checkpoint_bytes),
                        size(info.record_bytes), size(info.conv_bytes));
    if (info.T > 1)
      state += fmt::format("; a live state and {} snapshots would take {}", info.T, size(info.snapshot_bytes));
  }
  fmt::print(stderr, "state a request {}; KV {} a token\n", state, size(info.kv_bytes_per_token));
}

void print_summary(const EngineInfo& info, const GenerateOptions& options, const GenerateResult& r,
                   const std::optional<GenerateResult>& plain) {
  if (r.tokens.empty()) {
    fmt::print(stderr, "interrupted in the prompt of {} tokens, before the first token of the output\n",
               r.prompt_tokens);
    return;
  }
  fmt::print(stderr, "\n\n{} tokens ({}), {:.1f} tok/s; prompt {} tokens, prefill {:.1f} tok/s\n", r.tokens.size(),
             name_of(r.finish_reason), decode_rate(r), r.prompt_tokens, prefill_rate(r));
  std::string positions;
  for (size_t i = 0; i < r.drafted_at.size(); i++) {
    positions += fmt::format(" {:.0f}%",
                             100 * rate(static_cast<double>(r.accepted_at[i]), static_cast<double>(r.drafted_at[i])));
  }
  if (r.drafted > 0) {
    fmt::print(stderr, "acceptance length {:.2f} tokens a verify step; {} of {} drafts accepted, by position{}\n",
               acceptance_length(r), r.accepted, r.drafted, positions);
  }
  fmt::print(stderr, "{} verify steps, {:.1f} a second; {} folds\n", r.verify_steps,
             rate(static_cast<double>(r.verify_steps), r.decode_seconds), r.folds);
  print_state(info);
  if (!plain) return;
  fmt::print(stderr, "without speculation {:.1f} tok/s: speculation is {:.2f}x, {}\n", decode_rate(*plain),
             rate(decode_rate(r), decode_rate(*plain)),
             same_output(r, *plain) ? "the same tokens and logits, bit for bit"
             : may_differ(info, options)
                 ? "sampled with drafts from the drafter's own coins: the same law, other tokens"
                 : "other output");
}

json to_json(const EngineInfo& info, const GenerateResult& r, const std::optional<GenerateResult>& plain) {
  json out = {{"text", r.text},
              {"tokens", r.tokens},
              {"finish_reason", name_of(r.finish_reason)},
              {"prompt_tokens", r.prompt_tokens},
              {"completion_tokens", r.tokens.size()},
              {"prefill_seconds", r.prefill_seconds},
              {"decode_seconds", r.decode_seconds},
              {"decode_tokens_per_second", decode_rate(r)},
              {"prefill_tokens_per_second", prefill_rate(r)},
              {"spec_verify_ct", r.verify_steps},
              {"spec_accept_length", acceptance_length(r)},
              {"spec_draft_token_num", r.drafted},
              {"spec_accept_token_num", r.accepted},
              {"accepted_per_position", r.accepted_at},
              {"drafted_per_position", r.drafted_at},
              {"folds", r.folds},
              {"drafter", info.drafter},
              {"state_rollback", info.state_rollback},
              {"T", info.T},
              {"R", info.R},
              {"F", info.F},
              {"checkpoint_bytes", info.checkpoint_bytes},
              {"record_bytes", info.record_bytes},
              {"conv_bytes", info.conv_bytes},
              {"snapshot_bytes", info.snapshot_bytes},
              {"kv_bytes_per_token", info.kv_bytes_per_token}};
  if (!r.logprobs.empty()) {
    out["logprobs"] = r.logprobs;
    for (const std::vector<TokenLogprob>& place : r.top_logprobs) {
      json& top = out["top_logprobs"].emplace_back(json::array());
      for (const TokenLogprob& t : place) top.push_back({{"token", t.token}, {"logprob", t.logprob}});
    }
  }
  if (plain) {
    out["plain_decode_tokens_per_second"] = decode_rate(*plain);
    out["speedup"] = rate(decode_rate(r), decode_rate(*plain));
    out["identical"] = same_output(r, *plain);
  }
  return out;
}

void check_flags(const Flags& flags) {
  check(flags.json || flags.logprobs->count() == 0,
        "--logprobs {}: they are printed with all else as one JSON object; --json beside it works",
        flags.sampling.options.top_logprobs);
  check_drafted(flags.engine);
}

int generate(Flags& flags) {
  check_flags(flags);
  const std::string prompt = read_prompt(flags);
  if (!flags.json && !flags.quiet) report_loading(flags.engine);
  Engine engine(flags.engine);
  GenerateOptions options = flags.sampling.resolved(engine.info());
  options.logits_digest = flags.compare;
  options.logprobs = flags.logprobs->count() > 0;
  const bool chatty = !flags.json && !flags.quiet;
  catch_interrupts();
  options.on_prefill = options.on_step = [](int64_t) { return !interrupted(); };
  std::function<void()> header;
  if (chatty) header = [&] { print_header(engine.info(), flags, options); };
  const GenerateResult result = run(engine, flags, prompt, options, !flags.json, header);
  std::optional<GenerateResult> plain;
  if (flags.compare && !interrupted()) {
    options.speculate = false;
    plain = run(engine, flags, prompt, options, false, nullptr);
    if (interrupted()) plain.reset();
  }
  if (chatty) print_summary(engine.info(), options, result, plain);
  if (flags.compare && interrupted()) fmt::print(stderr, "comparison left out: interrupted\n");
  if (flags.json) fmt::print("{}\n", to_json(engine.info(), result, plain).dump());
  if (flags.quiet && !flags.json && !result.tokens.empty()) fmt::print("\n");
  flush_output();
  if (interrupted()) return kInterrupted;
  if (!plain || same_output(result, *plain) || may_differ(engine.info(), options)) return kSuccess;
  fmt::print(
      stderr,
      "DIFFERENT OUTPUT with and without speculation: a bug, unless --fold-policy every keeps a 16-bit checkpoint\n");
  return kFailedCheck;
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt, or answer it with --chat");
  add_state_flags(*command, flags->engine);
  add_speculation_flags(*command, flags->engine);
  add_run_flags(*command, flags->engine);
  CLI::Option* prompt =
      command->add_option("--prompt,-p", flags->prompt, "text; without it and --prompt-file standard input is read");
  command->add_option("--prompt-file,-f", flags->prompt_file, "file with the prompt; - is standard input")
      ->excludes(prompt);
  CLI::Option* chat =
      command->add_flag("--chat", flags->chat, "send the prompt as a user turn in the model's chat format");
  command->add_option("--system", flags->system, "system turn before it")->needs(chat);
  add_sampling_flags(*command, flags->sampling);
  command->add_option("--stop", flags->sampling.options.stop, "text that ends the output; may be repeated")
      ->allow_extra_args(false);
  flags->logprobs =
      add_number(*command, "--logprobs", flags->sampling.options.top_logprobs,
                 "with --json: the log-probability of every token, and of the N likeliest at its place", 5);
  command->add_flag("--compare", flags->compare,
                    "decode once more without speculation; print speed and whether the output is the same");
  command->add_flag("--json", flags->json, "print one JSON object instead of text and summary");
  command->add_flag("--quiet,-q", flags->quiet, "print the text only");
  command->callback([flags, &exit_code] { exit_code = generate(*flags); });
}

}  // namespace deltaring::cli
