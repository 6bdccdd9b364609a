#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

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
  add_integer(command, "--fold-grain", o.fold_grain, "F: checkpoints stand on multiples of 8 or 16 tokens")
      ->capture_default_str();
  add_integer(command, "--context-length", o.context_length,
              "tokens of prompt and output; 0 = the model's, at most 32768")
      ->capture_default_str();
}

void add_speculation_flags(CLI::App& command, EngineOptions& o) {
  command
      .add_option("--speculative-algorithm", o.speculative_algorithm,
                  "none, ngram (prompt lookup), eagle (the model's MTP head), or what the drafter's folder holds: "
                  "dflash, dflash2, dspark")
      ->capture_default_str();
  command.add_option("--speculative-draft-model-path,--drafter", o.speculative_draft_model_path,
                     "folder of a DFlash, DFlash 2 or DSpark drafter for the model");
  add_integer(command, "--speculative-num-draft-tokens", o.speculative_num_draft_tokens,
              "T: tokens a verify step, the anchor included (T-1 drafts); 0 = the drafter's block, or 4")
      ->capture_default_str();
  add_integer(command, "--linear-replayssm-cache-len", o.linear_replayssm_cache_len,
              "R: ring rows a request, a power of two >= 16; 0 = the fewest that serve")
      ->capture_default_str();
}

void add_prefill_flags(CLI::App& command, EngineOptions& o) {
  add_integer(command, "--chunked-prefill-size", o.chunked_prefill_size, "prompt tokens a pass, a multiple of 64")
      ->capture_default_str();
}

void add_run_flags(CLI::App& command, EngineOptions& o) {
  command.add_option("--backend", o.backend, "cpu, or reference (double precision, slow)")->capture_default_str();
  add_integer(command, "--threads", o.threads, "threads; 0 = one per core")->capture_default_str();
  add_prefill_flags(command, o);
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
