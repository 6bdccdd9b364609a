#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"
#include "draft/block_drafter.h"
#include "draft/mtp.h"
#include "engine/load.h"
#include "spec/step.h"

namespace deltaring {

namespace {

constexpr int64_t kMostRequests = int64_t{1} << 20;
constexpr int64_t kMostKvTokens = int64_t{1} << 36;  // their pages are numbered by 32 bits

// The largest n in [0, limit] for which holds(n), which is true up to some n and false behind it; holds(0) is granted.
template <class Holds>
int64_t largest(int64_t limit, const Holds& holds) {
  int64_t low = 0, high = std::max<int64_t>(limit, 0);
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (holds(middle))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

PlannedModel planned(const ModelConfig& config, const std::vector<TensorSpec>& tensors) {
  PlannedModel model{.config = config};
  for (const TensorSpec& tensor : tensors) {
    (tensor.name.starts_with("mtp.") ? model.mtp : model.trunk) += tensor.bytes() + tensor.copied;
  }
  return model;
}

// Collects single changes of the options under which the requests fit.
class Ways {
 public:
  Ways(const PlannedModel& model, const EngineOptions& asked, int64_t requests, int64_t memory)
      : model_(model), asked_(asked), requests_(requests), memory_(memory) {}

  // The largest multiple of `unit` below `value`, which is what the field says or stands for.
  void lower(const char* flag, int64_t EngineOptions::*field, int64_t value, int64_t unit) {
    const int64_t units = largest((value - 1) / unit, [&](int64_t n) { return works(field, n * unit); });
    if (units > 0) add(flag, std::to_string(units * unit));
  }

  void change(const char* flag, std::string EngineOptions::*field, const char* value) {
    if (asked_.*field != value && works(field, std::string(value))) add(flag, value);
  }

  void add(const char* flag, const std::string& value) { list.push_back(std::string(flag) + " " + value); }

  std::vector<std::string> list;

 private:
  template <class Value>
  bool works(Value EngineOptions::*field, const Value& value) const {
    EngineOptions o = asked_;
    o.*field = value;
    return fits(model_, o, {.requests = requests_}, memory_);
  }

  const PlannedModel& model_;
  const EngineOptions& asked_;
  const int64_t requests_, memory_;
};

}  // namespace

PlannedModel planned_model(const ModelConfig& config) { return planned(config, expected_tensors(config)); }

PlannedModel planned_model(const Weights& weights) { return planned(weights.config, bound_tensors(weights)); }

void add_drafter(PlannedModel& model, const BlockWeights& weights) {
  model.block = weights.config;
  model.block_bytes = weights.bytes;
  for (const TensorSpec& tensor : expected_tensors(weights.config)) model.block_bytes += tensor.copied;
}

MemoryPlan plan_memory(const PlannedModel& model, const EngineOptions& o, const Capacity& capacity) {
  check(capacity.requests >= 1 && capacity.requests <= kMostRequests,
        "--max-running-requests {}: 1 to {} requests are possible; 16 works", capacity.requests, kMostRequests);
  check(capacity.kv_tokens >= 0 && capacity.kv_tokens <= kMostKvTokens, "{} KV tokens: 1 to {} are possible",
        capacity.kv_tokens, kMostKvTokens);
  const bool mtp = o.speculative_algorithm == "eagle" && model.config.mtp_num_hidden_layers > 0;
  MemoryPlan plan{.shape = state_shape(model.config, mtp), .options = state_options(o, model.config)};
  if (model.block) add_draft_kv(plan.shape, *model.block);
  plan.options.seats = capacity.requests;
  if (capacity.kv_tokens > 0) plan.options.kv_tokens = capacity.kv_tokens;
  plan.state = plan_state(plan.shape, plan.options);
  const int64_t window = capacity.requests * plan.options.ring.T;
  plan.step_tokens = std::max(o.chunked_prefill_size, window);
  plan.weights = model.trunk;
  plan.layer_scratch = scratch_bytes(Decoder::scratch(model.config, plan.step_tokens));
  const int64_t taps = model.block ? static_cast<int64_t>(model.block->target_layer_ids.size()) : 0;
  for (const int64_t n : {taps, int64_t{0}}) {  // with and without drafts
    plan.step_scratch +=
        scratch_bytes(SpecStepper::scratch(model.config, plan.step_tokens, capacity.requests, plan.options.ring.T, n));
  }
  if (mtp) {
    plan.drafter = model.mtp;
    plan.drafter_scratch = MtpDrafter::scratch_bytes(model.config, plan.step_tokens, capacity.requests);
  }
  if (model.block) {
    plan.drafter = model.block_bytes;
    plan.drafter_scratch = BlockDrafter::scratch_bytes(*model.block, plan.step_tokens, capacity.requests);
  }
  int64_t total = 0;
  if (__builtin_add_overflow(plan.weights + plan.drafter + plan.scratch(), plan.state.total, &total)) {
    fail(ErrorKind::out_of_memory, "the plan needs more than 2^63 bytes; fewer requests or a shorter context work");
  }
  return plan;
}

bool fits(const PlannedModel& model, const EngineOptions& o, const Capacity& capacity, int64_t memory) {
  try {
    return plan_memory(model, o, capacity).total() <= memory;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::out_of_memory) throw;
    return false;
  }
}

int64_t kv_tokens_that_fit(const PlannedModel& model, const EngineOptions& o, int64_t requests, int64_t memory) {
  return largest(kMostKvTokens,
                 [&](int64_t n) { return fits(model, o, {.requests = requests, .kv_tokens = n}, memory); });
}

int64_t requests_that_fit(const PlannedModel& model, const EngineOptions& o, int64_t memory) {
  return largest(kMostRequests, [&](int64_t n) { return fits(model, o, {.requests = n}, memory); });
}

std::vector<std::string> ways_to_fit(const PlannedModel& model, const EngineOptions& o, int64_t requests,
                                     int64_t memory) {
  const StateOptions asked = state_options(o, model.config);
  Ways ways(model, o, requests, memory);
  const int64_t fewer = std::min(requests - 1, requests_that_fit(model, o, memory));
  if (fewer > 0) ways.add("--max-running-requests", std::to_string(fewer));
  ways.lower("--context-length", &EngineOptions::context_length, asked.kv_tokens, asked.page_rows);
  if (o.speculative_algorithm != "none") {
    ways.lower("--speculative-num-draft-tokens", &EngineOptions::speculative_num_draft_tokens, asked.ring.T, 1);
  }
  ways.lower("--chunked-prefill-size", &EngineOptions::chunked_prefill_size, o.chunked_prefill_size, 64);
  ways.change("--state-rollback", &EngineOptions::state_rollback, "replay");
  ways.change("--kv-cache-dtype", &EngineOptions::kv_cache_dtype, "bfloat16");
  ways.change("--mamba-ssm-dtype", &EngineOptions::mamba_ssm_dtype, "bfloat16");
  ways.change("--linear-replayssm-record-dtype", &EngineOptions::linear_replayssm_record_dtype, "bfloat16");
  return ways.list;
}

std::string does_not_fit(const PlannedModel& model, const EngineOptions& o, int64_t requests,
                         std::optional<int64_t> memory, const std::vector<std::string>& ways) {
  const std::string subject = requests == 1 ? "a request" : fmt::format("--max-running-requests {}", requests);
  std::string need = "more than 2^63 bytes";
  if (fits(model, o, {.requests = requests}, INT64_MAX)) {
    need = human_bytes(static_cast<double>(plan_memory(model, o, {.requests = requests}).total()));
  }
  const std::string there = memory ? human_bytes(static_cast<double>(*memory)) + " are there" : "which is not there";
  const std::string works =
      ways.empty() ? "no flag alone makes it fit, more memory or a smaller model does"
                   : fmt::format("each of these {}: {}", memory ? "works" : "needs less", fmt::join(ways, ", "));
  return fmt::format("{} and KV for one --context-length {} need {} of memory, {}; {}", subject,
                     state_options(o, model.config).kv_tokens, need, there, works);
}

}  // namespace deltaring
