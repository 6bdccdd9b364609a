#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>

#include "base/error.h"
#include "cli/commands.h"

namespace deltaring::cli {

void add_state_flags(CLI::App& command, EngineOptions& o) {
  command.add_option("--model,-m", o.model, "Hugging Face model folder")->required();
  command
      .add_option("--mamba-ssm-dtype", o.mamba_ssm_dtype,
                  "checkpoint: auto (the model's), float32, bfloat16 or float16")
      ->capture_default_str();
  command.add_option("--kv-cache-dtype", o.kv_cache_dtype, "float32, bfloat16 or float16")->capture_default_str();
  command
      .add_option("--state-rollback", o.state_rollback,
                  "how rejected tokens leave the state: replay (a checkpoint and a ring of records), or snapshot (a "
                  "whole state per window token; the baseline to compare with)")
      ->capture_default_str();
  command
      .add_option("--linear-replayssm-record-dtype", o.linear_replayssm_record_dtype,
                  "k and v in the ring: float32, bfloat16 or float16")
      ->capture_default_str();
  command
      .add_option("--fold-policy", o.fold_policy,
                  "grid (bit-exact) or every (fold after each step; bit-exact with float32 only)")
      ->capture_default_str();
  add_number(command, "--fold-grain", o.fold_grain, "F: checkpoints stand on multiples of 8 or 16 tokens", 8)
      ->capture_default_str();
  add_number(command, "--context-length", o.context_length,
             "tokens of prompt and output; 0 = the model's, at most 32768", 2048)
      ->capture_default_str();
}

void add_speculation_flags(CLI::App& command, EngineOptions& o) {
  command
      .add_option("--speculative-algorithm", o.speculative_algorithm,
                  "none, ngram (prompt lookup), suffix (suffix decoding), eagle (the model's MTP head), or what the "
                  "drafter's folder holds: dflash, dflash2, dspark")
      ->capture_default_str();
  add_drafter_flag(command, o);
  add_window_flags(command, o);
}

void add_drafter_flag(CLI::App& command, EngineOptions& o) {
  command.add_option("--speculative-draft-model-path,--drafter", o.speculative_draft_model_path,
                     "folder of a DFlash, DFlash 2 or DSpark drafter for the model");
}

void add_window_flags(CLI::App& command, EngineOptions& o) {
  add_number(command, "--speculative-num-draft-tokens", o.speculative_num_draft_tokens,
             "T: tokens a verify step, the anchor included (T-1 drafts); 0 = the drafter's block, or 4", 4)
      ->capture_default_str();
  add_number(command, "--linear-replayssm-cache-len", o.linear_replayssm_cache_len,
             "R: ring rows a request, a power of two >= 16; 0 = the fewest that serve", 32)
      ->capture_default_str();
  command
      .add_option(
          "--ragged-verify-mode", o.ragged_verify_mode,
          "static (all drafts are verified), cap-accept (all, but unlikely ones never stay) or compact (unlikely "
          "ones are left out; rows of different length); the last two need a drafter with confidence: suffix, or "
          "dspark "
          "with its head, and make sampled output with drawn drafts depend on times unless a table says the cost")
      ->capture_default_str();
  command.add_option("--speculative-dspark-sps-table-path", o.speculative_dspark_sps_table_path,
                     "JSON with sample_batch_tokens and sample_steps_per_sec: the cost of a step, for the last two and "
                     "--speculative-adaptive; default: measured at the start");
  command.add_flag("--speculative-adaptive", o.speculative_adaptive,
                   "draft as far as acceptance and the measured cost of a step make it pay, at most T-1; then sampled "
                   "output with drawn drafts depends on times");
}

void check_drafted(const EngineOptions& o, const char* works) {
  if (o.speculative_algorithm != "none" || !o.speculative_draft_model_path.empty()) return;
  constexpr const char* kIdle = "{}{}: nothing drafts here; {} beside it works for every model";
  const int64_t T = o.speculative_num_draft_tokens;
  const std::string& table = o.speculative_dspark_sps_table_path;
  const double length = o.simulate_acceptance_length;
  check(T <= 1, kIdle, "--speculative-num-draft-tokens ", T, works);
  check(!o.speculative_adaptive, kIdle, "--speculative-adaptive", "", works);
  check(table.empty(), kIdle, "--speculative-dspark-sps-table-path ", table, works);
  check(length == 0, kIdle, "--simulate-acceptance-length ", length, works);
}

void add_prefill_flags(CLI::App& command, EngineOptions& o) {
  add_number(command, "--chunked-prefill-size", o.chunked_prefill_size, "prompt tokens a pass, a multiple of 64", 256)
      ->capture_default_str();
}

void add_run_flags(CLI::App& command, EngineOptions& o) {
  command.add_option("--backend", o.backend, "cpu, or reference (double precision, slow)")->capture_default_str();
  add_number(command, "--threads", o.threads, "threads; 0 = one per core", 0)->capture_default_str();
  add_prefill_flags(command, o);
}

namespace {

std::map<int32_t, float> parse_bias(const std::vector<std::string>& words) {
  std::map<int32_t, float> bias;
  for (const std::string& word : words) {
    int32_t id = 0;
    float value = 0;
    const char* const end = word.data() + word.size();
    const auto [equals, bad_id] = std::from_chars(word.data(), end, id);
    const bool has_value = bad_id == std::errc() && equals != end && *equals == '=';
    const auto [rest, bad_value] = std::from_chars(has_value ? equals + 1 : end, end, value);
    check(has_value && bad_value == std::errc() && rest == end, "--logit-bias {}: a token id and a bias; 42=-100 works",
          word);
    bias[id] = value;
  }
  return bias;
}

}  // namespace

GenerateOptions SamplingFlags::resolved(const EngineInfo& info) const {
  GenerateOptions o = options;
  o.temperature = temperature.value_or(info.temperature);
  o.top_k = top_k.value_or(info.top_k);
  o.top_p = top_p.value_or(info.top_p);
  o.logit_bias = parse_bias(logit_bias);
  return o;
}

void add_sampling_flags(CLI::App& command, SamplingFlags& flags) {
  GenerateOptions& o = flags.options;
  add_number(command, "--max-tokens,-n", o.max_tokens, "tokens to generate at most", 256)->capture_default_str();
  add_number(command, "--temperature", flags.temperature, "0 = greedy; default: the model's generation_config.json",
             0.7f);
  add_number(command, "--top-k", flags.top_k, "the k most likely tokens; 0 = off; default: the model's", 20);
  add_number(command, "--top-p", flags.top_p,
             "the most likely tokens of that mass, (0, 1]; 1 = off; default: the model's", 0.95f);
  add_number(command, "--min-p", o.min_p, "tokens at least that many times as likely as the first; 0 = off", 0.05f)
      ->capture_default_str();
  add_number(command, "--repetition-penalty", o.repetition_penalty,
             "divides what speaks for tokens of prompt and output; 1 = off", 1.1f)
      ->capture_default_str();
  add_number(command, "--presence-penalty", o.presence_penalty,
             "taken off the logits of tokens in the output, -2 to 2; 0 = off", 0.5f)
      ->capture_default_str();
  add_number(command, "--frequency-penalty", o.frequency_penalty,
             "the same, once for each time they stand there, -2 to 2; 0 = off", 0.5f)
      ->capture_default_str();
  command.add_option("--logit-bias", flags.logit_bias, "ID=BIAS: added to the logit of a token; may be repeated")
      ->allow_extra_args(false);
  add_number(command, "--seed", o.seed, "of all random choices: the same seed gives the same output", 0)
      ->capture_default_str();
  command.add_flag("--ignore-eos", o.ignore_eos, "do not stop at the model's end tokens");
}

std::string describe_sampling(const GenerateOptions& o) {
  std::string text = o.temperature == 0 ? "greedy"
                                        : fmt::format("temperature {:g}, top-k {}, top-p {:g}, min-p {:g}, seed {}",
                                                      o.temperature, o.top_k, o.top_p, o.min_p, o.seed);
  if (o.repetition_penalty != 1) text += fmt::format(", repetition penalty {:g}", o.repetition_penalty);
  if (o.presence_penalty != 0) text += fmt::format(", presence penalty {:g}", o.presence_penalty);
  if (o.frequency_penalty != 0) text += fmt::format(", frequency penalty {:g}", o.frequency_penalty);
  for (const auto& [id, bias] : o.logit_bias) text += fmt::format(", logit bias {}={:g}", id, bias);
  return text;
}

void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    fail(ErrorKind::invalid_argument, "standard output cannot be written: {}; a file on a disk with room works",
         std::strerror(errno));
  }
}

void report_loading(EngineOptions& o) {
  o.on_notice = [](const std::string& notice) { fmt::print(stderr, "notice: {}\n", notice); };
  if (!isatty(STDERR_FILENO)) return;
  o.on_progress = [](double fraction) {
    constexpr int kWidth = 30;
    const int full = static_cast<int>(fraction * kWidth);
    fmt::print(stderr, "\rloading [{:#<{}}{:.<{}}] {:3.0f}%{}", "", full, "", kWidth - full, fraction * 100,
               fraction >= 1 ? "\r\x1b[K" : "");
    std::fflush(stderr);
  };
}

}  // namespace deltaring::cli
