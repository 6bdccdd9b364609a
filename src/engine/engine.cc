#include "deltaring/engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>

#include "backends/tables.h"
#include "base/error.h"
#include "engine/drafters.h"
#include "engine/load.h"
#include "engine/stops.h"
#include "model/chat.h"
#include "model/generation_config.h"
#include "model/tokenizer.h"
#include "spec/step.h"

namespace deltaring {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// FNV-1a over the bits of one row of logits, two floats at a time.
constexpr uint64_t kDigestBasis = 0xcbf29ce484222325u;
uint64_t digest(uint64_t hash, const float* logits, int64_t count) {
  for (int64_t i = 0; i < count; i += 2) {
    uint64_t bits = 0;
    std::memcpy(&bits, logits + i, sizeof(float) * static_cast<size_t>(std::min<int64_t>(2, count - i)));
    hash = (hash ^ bits) * 0x100000001b3u;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

struct Engine::Impl {
  explicit Impl(const EngineOptions& options);

  GenerateResult generate(const std::vector<int32_t>& prompt, const GenerateOptions& options, const OnText& on_text);
  const ChatFormat& chat_format();

  std::filesystem::path folder;
  std::vector<std::string> notices;
  ModelConfig config;
  GenerationConfig generation;
  Tokenizer tokenizer;
  std::optional<ChatFormat> chat;
  std::unique_ptr<Stream> stream;
  std::optional<HybridModel> model;
  std::optional<StatePool> pool;
  std::unique_ptr<Drafter> drafter;
  std::optional<SpecStepper> speculative, plain;
  EngineInfo info;
};

Engine::Impl::Impl(const EngineOptions& options)
    : folder(options.model),
      config(load_model_config(folder)),
      generation(load_generation_config(folder, config)),
      tokenizer(Tokenizer::load(folder / "tokenizer.json")) {
  EngineOptions o = options;
  const std::optional<BlockConfig> block_config = resolve_drafter(o, config);
  const OpTable& ops = check_ops(backend(o.backend));
  const StateOptions state = state_options(o, config);
  const VerifyOptions verify = verify_options(o);
  Weights weights = load_weights(folder, config);
  if (tokenizer.size() > config.vocab_size) {
    fail(ErrorKind::corrupt, "tokenizer.json has {} ids, the embedding {} rows: they belong to different models",
         tokenizer.size(), config.vocab_size);
  }
  std::optional<BlockWeights> block;
  if (block_config) block = load_block_weights(o.speculative_draft_model_path, *block_config);
  PlannedModel planned = planned_model(weights);
  if (block) add_drafter(planned, *block);
  check_memory(planned, o);
  notices = config.notices;
  notices.insert(notices.end(), weights.notices.begin(), weights.notices.end());
  if (block) notices.insert(notices.end(), block->notices.begin(), block->notices.end());
  for (const NonFinite& bad : non_finite(weights, o.on_progress)) {
    notices.push_back(fmt::format("{}: {} of {} elements are NaN or infinite", bad.name, bad.count, bad.size));
  }
  if (state.rollback == StateRollback::replay && state.ring.policy == FoldPolicy::every &&
      state.checkpoint != DType::f32) {
    notices.push_back(
        fmt::format("--fold-policy every with {} checkpoints is not bit-exact; grid is", name_of(state.checkpoint)));
  }
  if (verify.simulate_acceptance_length > 0) {
    notices.push_back(fmt::format("--simulate-acceptance-length {}: the output is made up, only times mean something",
                                  verify.simulate_acceptance_length));
  }
  stream = ops.make_stream(o.threads);
  model.emplace(std::move(weights), ops, *stream, std::max(o.chunked_prefill_size, state.ring.T));
  allocate_state(pool, planned, o);
  drafter = make_drafter(o, std::move(block), *model, *pool, tokenizer.size());
  speculative.emplace(*model, *pool, drafter.get(), o.chunked_prefill_size, tokenizer.size(), verify);
  plain.emplace(*model, *pool, nullptr, o.chunked_prefill_size, tokenizer.size());
  info = describe(*model, *pool, o);
  info.drafter = drafter ? drafter->name() : "none";
  info.drafts_are_drawn = drafter && drafter->draws();
  info.threads = stream->threads();
  info.temperature = generation.do_sample ? static_cast<float>(generation.temperature) : 0;
  info.top_k = static_cast<int32_t>(generation.top_k);
  info.top_p = static_cast<float>(generation.top_p);
  info.notices = notices;
  if (o.on_notice) std::for_each(notices.begin(), notices.end(), o.on_notice);
}

const ChatFormat& Engine::Impl::chat_format() {
  if (!chat) chat = ChatFormat::load(folder);
  return *chat;
}

namespace {

// One request on its way: the sequence, its seat and what of its text may be shown.
class Request {
 public:
  Request(const std::vector<int32_t>& prompt, const GenerateOptions& o, const GenerationConfig& generation,
          const Tokenizer& tokenizer, StatePool& pool, const Engine::OnText& on_text)
      : options_(o),
        on_text_(on_text),
        pool_(pool),
        decoder_(tokenizer, true),
        stops_({.eos_tokens = {generation.eos_token_id.begin(), generation.eos_token_id.end()},
                .stop_tokens = o.stop_token_ids,
                .stop_strings = o.stop,
                .max_tokens = o.max_tokens,
                .ignore_eos = o.ignore_eos}) {
    sequence.tokens = prompt;
    sequence.sampling = {.temperature = o.temperature, .top_k = o.top_k, .top_p = o.top_p, .min_p = o.min_p};
    sequence.seed = o.seed;
    sequence.prompt = static_cast<int64_t>(prompt.size());
    sequence.penalties = {
        .repetition = o.repetition_penalty, .presence = o.presence_penalty, .frequency = o.frequency_penalty};
    for (const auto& [id, bias] : o.logit_bias) sequence.bias.push_back({.id = id, .bias = bias});
    if (o.logprobs) sequence.top_logprobs = o.top_logprobs;
    check(sequence.sampling);
    check(sequence.penalties);
    for (const TokenBias& bias : sequence.bias) check(bias, tokenizer.size());
    check(o.top_logprobs >= 0 && o.top_logprobs <= tokenizer.size(), "top_logprobs {}: 0 to {} are possible; 5 works",
          o.top_logprobs, tokenizer.size());
    sequence.seat = pool.allocate();
    check(sequence.seat >= 0, "all {} seats are taken", pool.options().seats);
    result.logits_digest = kDigestBasis;
    result.prompt_tokens = static_cast<int64_t>(prompt.size());
  }
  ~Request() { pool_.free(sequence.seat); }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // Takes over what the last prefill or step emitted. True while the request goes on.
  bool accept(const View<2>& logits) {
    size_t at = sequence.tokens.size() - static_cast<size_t>(sequence.emitted);
    int64_t row = 0;
    for (; at < sequence.tokens.size() && stops_.stop() == Stop::none && wanted_; at++, row++) {
      const int32_t token = sequence.tokens[at];
      const StopRules::Step step = stops_.push(token, stops_.is_stop_token(token) ? "" : decoder_.push(token));
      result.tokens.push_back(token);
      if (options_.logprobs) keep_logprobs(sequence.logprobs[static_cast<size_t>(row)]);
      if (options_.logits_digest) result.logits_digest = digest(result.logits_digest, logits.f32(row), logits.shape[1]);
      show(step.text);
    }
    if (stops_.stop() != Stop::none || !wanted_) return false;
    if (sequence.failed) {
      fail(ErrorKind::corrupt,
           "the logits behind token {} are not finite; `deltaring inspect --scan` names weights that are not",
           sequence.tokens.size());
    }
    if (options_.on_step) wanted_ = options_.on_step(stops_.tokens());
    return wanted_;
  }

  void cancel() { wanted_ = false; }

  // Asks for as many drafts as can still be emitted. False when prompt and output fill the context.
  bool plan_step(int64_t context, int64_t T) {
    const int64_t length = static_cast<int64_t>(sequence.tokens.size());
    const int64_t left = std::min(options_.max_tokens - stops_.tokens(), context - length);
    if (left < 1) return false;
    sequence.max_drafts = static_cast<int32_t>(std::min(T, left) - 1);
    return pool_.reserve(sequence.seat, length + sequence.max_drafts);
  }

  void finish(bool out_of_context) {
    show(stops_.finish(decoder_.finish()));
    const Stop stop = stops_.stop();
    result.finish_reason = stop == Stop::stop_token    ? FinishReason::stop_token
                           : stop == Stop::stop_string ? FinishReason::stop_string
                           : !wanted_                  ? FinishReason::cancelled
                           : out_of_context            ? FinishReason::context
                                                       : FinishReason::length;
  }

  Sequence sequence;
  GenerateResult result;

 private:
  void show(const std::string& text) {
    if (!wanted_ || text.empty()) return;
    result.text += text;
    if (on_text_) wanted_ = on_text_(text);
  }

  void keep_logprobs(const TokenLogprobs& token) {
    result.logprobs.push_back(token.chosen);
    std::vector<TokenLogprob>& top = result.top_logprobs.emplace_back();
    for (size_t i = 0; i < token.top.size(); i++) top.push_back({.token = token.top_ids[i], .logprob = token.top[i]});
  }

  const GenerateOptions& options_;
  const Engine::OnText& on_text_;
  StatePool& pool_;
  StreamDecoder decoder_;
  StopRules stops_;
  bool wanted_ = true;  // the caller has not ended the request
};

}  // namespace

GenerateResult Engine::Impl::generate(const std::vector<int32_t>& prompt, const GenerateOptions& o,
                                      const OnText& on_text) {
  const int64_t context = pool->options().kv_tokens, T = pool->options().ring.T;
  const int64_t length = static_cast<int64_t>(prompt.size());
  check(length >= 1, "the prompt is empty; give at least one character, for example --prompt 'def '");
  const int64_t limit = config.max_position_embeddings;
  check(length < limit, "the prompt has {} tokens, the model takes {}; a prompt of {} works", length, limit, limit - 1);
  check(length < context, "the prompt has {} tokens, --context-length {} leaves room for {}; {} works", length, context,
        context - 1, length + std::clamp<int64_t>(o.max_tokens, 1, limit - length));
  for (const int32_t id : prompt)
    check(id >= 0 && id < tokenizer.size(), "prompt token {} is not in [0, {})", id, tokenizer.size());
  SpecStepper& stepper = o.speculate ? *speculative : *plain;
  Request request(prompt, o, generation, tokenizer, *pool, on_text);
  stepper.reset_stats();
  Sequence* const sequence = &request.sequence;
  check(pool->reserve(sequence->seat, length), "no KV pages for {} tokens", length);
  const Clock::time_point begin = Clock::now();
  if (!stepper.prefill(*sequence, o.on_prefill)) request.cancel();
  GenerateResult& result = request.result;
  result.prefill_seconds = seconds_since(begin);
  const Clock::time_point first = Clock::now();
  bool going = request.accept(stepper.logits()), fits = true;
  while (going && (fits = request.plan_step(context, T))) {
    stepper.step({&sequence, 1});
    result.step_lengths.push_back(sequence->emitted);
    going = request.accept(stepper.logits());
  }
  result.decode_seconds = seconds_since(first);
  request.finish(!fits);
  const SpecStats& stats = stepper.stats();
  result.verify_steps = stats.steps, result.step_tokens = stats.emitted;
  result.drafted = stats.drafted, result.accepted = stats.accepted, result.folds = stats.folds;
  result.drafted_at = stats.drafted_at, result.accepted_at = stats.accepted_at;
  return std::move(result);
}

Engine::Engine(const EngineOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

GenerateResult Engine::generate(const std::vector<int32_t>& prompt, const GenerateOptions& options,
                                const OnText& on_text) {
  return impl_->generate(prompt, options, on_text);
}

GenerateResult Engine::generate(std::string_view prompt, const GenerateOptions& options, const OnText& on_text) {
  return impl_->generate(impl_->tokenizer.encode(prompt), options, on_text);
}

GenerateResult Engine::generate(const std::vector<Message>& chat, const GenerateOptions& options,
                                const OnText& on_text) {
  std::vector<ChatMessage> messages;
  for (const Message& m : chat) messages.push_back({.role = m.role, .content = m.content});
  return impl_->generate(impl_->tokenizer.encode(impl_->chat_format().render(messages)), options, on_text);
}

std::vector<int32_t> Engine::tokenize(std::string_view text) const { return impl_->tokenizer.encode(text); }

const EngineInfo& Engine::info() const { return impl_->info; }

}  // namespace deltaring
