#include "engine/load.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include "base/error.h"

namespace deltaring {

namespace {

constexpr int64_t kDefaultContext = 32768;  // tokens: a model's own limit of 262144 would plan many GiB of KV

DType dtype_of(const char* flag, const std::string& name) {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    if (name == name_of(t)) return t;
  }
  fail(ErrorKind::invalid_argument, "{} {}: float32, bfloat16 and float16 are possible; float32 works", flag, name);
}

FoldPolicy policy_of(const std::string& name) {
  if (name == "grid") return FoldPolicy::grid;
  if (name == "every") return FoldPolicy::every;
  fail(ErrorKind::invalid_argument, "--fold-policy {}: grid and every are possible; grid works", name);
}

// MemAvailable in bytes, or a number nothing exceeds where the system does not say.
int64_t available_memory() {
  std::ifstream info("/proc/meminfo");
  for (std::string key; info >> key;) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && info >> kib) return kib * 1024;
  }
  return INT64_MAX;
}

template <class Each>
void for_each_tensor(const Weights& w, const Each& each) {
  for (const std::string& name : w.source->names()) {
    if (const TensorRef* tensor = w.source->find(name)) each(*tensor);
  }
}

}  // namespace

StateOptions state_options(const EngineOptions& o, const ModelConfig& config) {
  StateOptions state;
  const int64_t limit = config.max_position_embeddings;
  check(o.context_length >= 0 && o.context_length <= limit,
        "--context-length {}: the model takes 1 to {} tokens; {} works", o.context_length, limit,
        std::min(limit, kDefaultContext));
  state.kv_tokens = o.context_length ? o.context_length : std::min(limit, kDefaultContext);
  state.ring.T = o.speculative_algorithm == "none" ? 1 : o.speculative_num_draft_tokens;
  state.ring.F = o.fold_grain;
  state.ring.policy = policy_of(o.fold_policy);
  check(o.linear_replayssm_cache_len >= 0, "--linear-replayssm-cache-len {}: a power of two from 16 on; 16 works",
        o.linear_replayssm_cache_len);
  check(o.speculative_num_draft_tokens >= 1,
        "--speculative-num-draft-tokens {}: the window holds the anchor and the drafts, at least 1 token; 4 works",
        o.speculative_num_draft_tokens);
  state.ring.R = o.linear_replayssm_cache_len ? o.linear_replayssm_cache_len
                                              : default_ring_rows(state.ring.T, state.ring.F, state.ring.policy);
  check_ring(state.ring);
  state.checkpoint =
      o.mamba_ssm_dtype == "auto" ? config.mamba_ssm_dtype : dtype_of("--mamba-ssm-dtype", o.mamba_ssm_dtype);
  state.kv = dtype_of("--kv-cache-dtype", o.kv_cache_dtype);
  return state;
}

void check_memory(const StatePlan& plan, const StateOptions& state) {
  const int64_t available = available_memory();
  if (plan.total <= available) return;
  const int64_t per_token = plan.kv_per_page / state.page_rows;
  const int64_t fits =
      (available - plan.ring_state_per_seat() * state.seats) / std::max<int64_t>(per_token, 1) / 64 * 64;
  fail(ErrorKind::out_of_memory, "--context-length {} needs {:.1f} GiB of state, {:.1f} GiB are available; {} works",
       state.kv_tokens, static_cast<double>(plan.total) / (1 << 30), static_cast<double>(available) / (1 << 30),
       std::max<int64_t>(fits, 1));
}

void read_weights(const Weights& weights, const std::function<void(double)>& on_progress) {
  constexpr size_t kPage = 4096, kReport = size_t{16} << 20;
  size_t total = 0, done = 0, reported = 0;
  for_each_tensor(weights, [&](const TensorRef& t) { total += t.bytes; });
  if (on_progress) on_progress(0);
  for_each_tensor(weights, [&](const TensorRef& t) {
    for (size_t at = 0; at < t.bytes; at += kPage) {
      static_cast<void>(static_cast<const volatile char*>(t.data)[at]);
      if (on_progress && done + at >= reported + kReport) {
        reported = done + at;
        on_progress(static_cast<double>(reported) / static_cast<double>(total));
      }
    }
    done += t.bytes;
  });
  if (on_progress) on_progress(1);
}

EngineInfo describe(const HybridModel& model, const StatePool& pool, const EngineOptions& o) {
  EngineInfo info;
  const StatePlan& plan = pool.plan();
  const StateOptions& state = pool.options();
  info.backend = o.backend;
  info.threads = o.threads ? o.threads : static_cast<int>(std::thread::hardware_concurrency());
  info.vocabulary = model.config().vocab_size;
  for_each_tensor(model.weights(), [&](const TensorRef& t) {
    info.weight_bytes += static_cast<int64_t>(t.bytes);
    info.parameters += static_cast<int64_t>(t.bytes / size_of(t.dtype));
  });
  info.T = state.ring.T, info.R = state.ring.R, info.F = state.ring.F, info.context_length = state.kv_tokens;
  info.checkpoint_bytes = plan.checkpoint_per_seat;
  info.record_bytes = plan.records_per_seat;
  info.conv_bytes = plan.conv_per_seat;
  info.snapshot_bytes = snapshot_state_per_seat(pool.shape(), state);
  info.kv_bytes_per_token = plan.kv_per_page / state.page_rows;
  info.state_bytes = plan.total;
  return info;
}

}  // namespace deltaring
