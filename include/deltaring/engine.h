// deltaring: speculative decoding of Gated-DeltaNet hybrid models without state snapshots.
//
// An Engine is one loaded model with its memory. Between tokens a request is one checkpoint of its recurrent state and
// a short ring of the inputs of the last tokens, under two integers. A step drafts T-1 tokens, verifies them with the
// newest one in a single pass, keeps a prefix and moves an integer; rejected tokens need no undo.
//
// Load once, call generate as often as you like. An Engine is used by one thread at a time; several may live side by
// side. Nothing is printed and no environment is read. Failures are deltaring::Error (deltaring/error.h), whose text
// says what was asked, what is possible and a value that works, or std::bad_alloc; the Engine stays usable behind both.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deltaring/error.h"

namespace deltaring {

// Names and meanings follow SGLang's flags; the CLI has the same names.
struct EngineOptions {
  std::string model;            // Hugging Face folder
  std::string backend = "cpu";  // cpu | reference (double precision, slow)
  int threads = 0;              // 0 = one per core
  // none | ngram | suffix | eagle (the checkpoint's MTP head) | dflash | dflash2 | dspark (a drafter's folder says
  // which)
  std::string speculative_algorithm = "none";
  std::string speculative_draft_model_path;  // folder of a block drafter; another algorithm beside it is refused
  // T: tokens a verify step, anchor included; vLLM's count is T-1. 0 = the block of a block drafter, 4 for the others.
  int64_t speculative_num_draft_tokens = 0;
  std::string ragged_verify_mode = "static";      // static | cap-accept | compact: what becomes of unlikely drafts
  std::string speculative_dspark_sps_table_path;  // JSON, cost of a step by tokens; empty = measured at the start
  bool speculative_adaptive = false;              // T follows acceptance and the measured cost of a step
  double simulate_acceptance_length = 0;          // for benches: tokens every step emits, right or wrong; 0 = off
  std::string state_rollback = "replay";          // replay | snapshot (a whole state per window token: the baseline)
  int64_t linear_replayssm_cache_len = 0;         // R: ring rows, a power of two >= 16; 0 = the fewest that serve
  std::string linear_replayssm_record_dtype = "float32";  // k and v in the ring: float32 | bfloat16 | float16
  int64_t fold_grain = 8;                                 // F: checkpoints stand on multiples of 8 or 16 tokens
  std::string fold_policy = "grid";                       // grid | every
  std::string mamba_ssm_dtype = "auto";               // checkpoint: auto (the model's) | float32 | bfloat16 | float16
  std::string kv_cache_dtype = "float32";             // float32 | bfloat16 | float16
  int64_t context_length = 0;                         // tokens of prompt and output; 0 = the model's, at most 32768
  int64_t chunked_prefill_size = 256;                 // tokens a prefill pass, a multiple of 64
  std::function<void(const std::string&)> on_notice;  // one sentence about something skipped or limited
  std::function<void(double)> on_progress;            // fraction of the weights read, 0 to 1
};

struct Message {
  std::string role;  // system | user | assistant | tool
  std::string content;
};

// The defaults are greedy; EngineInfo has the model's own sampling defaults, which the CLI takes.
struct GenerateOptions {
  float temperature = 0;                // 0 = greedy
  int32_t top_k = 0;                    // 0 = off
  float top_p = 1;                      // 1 = off
  float min_p = 0;                      // 0 = off
  float repetition_penalty = 1;         // 1 = off; ids of prompt and output
  float presence_penalty = 0;           // 0 = off, [-2, 2]; ids of the output
  float frequency_penalty = 0;          // 0 = off, [-2, 2]; the same, once each time
  std::map<int32_t, float> logit_bias;  // by token id, [-100, 100], added behind the penalties
  uint64_t seed = 0;
  int64_t max_tokens = 256;
  bool ignore_eos = false;
  std::vector<std::string> stop;  // texts that end the output and are not part of it
  std::vector<int32_t> stop_token_ids;
  bool speculate = true;       // false: plain decoding; greedy, or drafted by ngram or suffix, the same tokens
  bool logits_digest = false;  // fill GenerateResult::logits_digest
  bool logprobs = false;       // fill GenerateResult::logprobs and top_logprobs
  int32_t top_logprobs = 0;    // so many of the likeliest tokens at each place
  // Called with the prompt tokens that are through, behind every prefill pass but the last; false ends the request.
  std::function<bool(int64_t)> on_prefill;
  // Called with the tokens that are out, behind the prefill and every step that no stop ends, whether text came of them
  // or not; false ends the request, and its result holds those tokens.
  std::function<bool(int64_t)> on_step;
};

struct TokenLogprob {
  int32_t token;
  float logprob;
};

enum class FinishReason { stop_token, stop_string, length, context, cancelled };

struct GenerateResult {
  std::string text;
  std::vector<int32_t> tokens;  // as emitted, a stop token included
  FinishReason finish_reason = FinishReason::length;
  int64_t prompt_tokens = 0;
  double prefill_seconds = 0;  // until the first token
  double decode_seconds = 0;   // all others
  int64_t verify_steps = 0;    // steps behind the prefill
  int64_t step_tokens = 0;     // tokens those steps gave, those cut by a stop included
  int64_t drafted = 0, accepted = 0;
  std::vector<int64_t> drafted_at, accepted_at;  // [T-1] by draft position
  std::vector<int32_t> step_lengths;             // [verify_steps] tokens that each step gave
  int64_t folds = 0;                             // steps that moved the checkpoint
  // Natural logarithms of the model's own law, at temperature 1 and before penalties, bias and filters; one entry a
  // token.
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> top_logprobs;  // likeliest first
  uint64_t logits_digest = 0;                           // hash of the bits of the logits behind every emitted token
};

// What is loaded and what a request costs. Bytes.
struct EngineInfo {
  std::string backend, drafter;
  bool drafts_are_drawn = false;  // at temperature > 0: sampled output then has the model's law, but other tokens
  int threads = 0;
  int64_t vocabulary = 0, parameters = 0, weight_bytes = 0;
  int64_t T = 0, R = 0, F = 0, context_length = 0;
  std::string ragged_verify_mode;                                  // static | cap-accept | compact
  std::string state_rollback;                                      // replay | snapshot
  int64_t checkpoint_bytes = 0, record_bytes = 0, conv_bytes = 0;  // a request
  int64_t snapshot_bytes = 0;  // all state of a request under state_rollback = snapshot, to compare with
  int64_t kv_bytes_per_token = 0;
  int64_t state_bytes = 0;           // allocated for all requests
  float temperature = 0, top_p = 1;  // the model's own sampling defaults
  int32_t top_k = 0;
  std::vector<std::string> notices;
};

class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  // Continues a text or answers a chat. on_text receives the output in whole characters as it is decided; returning
  // false ends the request: nothing behind that piece is part of the result. A prompt must hold at least one token and
  // leave room in the context.
  using OnText = std::function<bool(std::string_view)>;
  GenerateResult generate(std::string_view prompt, const GenerateOptions& options, const OnText& on_text = {});
  GenerateResult generate(const std::vector<Message>& chat, const GenerateOptions& options, const OnText& on_text = {});
  GenerateResult generate(const std::vector<int32_t>& prompt, const GenerateOptions& options,
                          const OnText& on_text = {});

  std::vector<int32_t> tokenize(std::string_view text) const;
  const EngineInfo& info() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltaring
