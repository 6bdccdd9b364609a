#include "engine/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "engine/drafters.h"
#include "model/json_fields.h"

namespace deltaring {

namespace {

constexpr int64_t kPrefillUnit = 64, kLongestPrefill = 16384;  // tokens of a prefill pass
constexpr int64_t kDefaultWindow = 4;
constexpr int64_t kDefaultContext = 32768;  // tokens: a model's own limit of 262144 would plan many GiB of KV

DType dtype_of(const char* flag, const std::string& name) {
  if (const std::optional<DType> dtype = dtype_named(name)) return *dtype;
  fail(ErrorKind::invalid_argument, "{} {}: float32, bfloat16 and float16 are possible; float32 works", flag, name);
}

StateRollback rollback_of(const std::string& name) {
  if (name == "replay") return StateRollback::replay;
  if (name == "snapshot") return StateRollback::snapshot;
  fail(ErrorKind::invalid_argument, "--state-rollback {}: replay and snapshot are possible; replay works", name);
}

FoldPolicy policy_of(const std::string& name) {
  if (name == "grid") return FoldPolicy::grid;
  if (name == "every") return FoldPolicy::every;
  fail(ErrorKind::invalid_argument, "--fold-policy {}: grid and every are possible; grid works", name);
}

VerifyMode mode_of(const std::string& name) {
  if (name == "static") return VerifyMode::dense;
  if (name == "cap-accept") return VerifyMode::cap_accept;
  if (name == "compact") return VerifyMode::compact;
  fail(ErrorKind::invalid_argument,
       "--ragged-verify-mode {}: static, cap-accept and compact are possible; static works with every drafter", name);
}

// {"sample_batch_tokens": [1, 4, 8], "sample_steps_per_sec": [90, 80, 71]}; other keys are ignored.
StepCost read_step_cost(const std::string& path) {
  const char* const works = R"({"sample_batch_tokens": [1, 8], "sample_steps_per_sec": [90, 71]} works)";
  check_file("--speculative-dspark-sps-table-path", path, fmt::format("a file with {}", works));
  const nlohmann::json table = parse_json(read_text(path), path, works);
  const JsonFields fields(table, path);
  const std::vector<int64_t> tokens = fields.integers("sample_batch_tokens", 1, int64_t{1} << 30);
  const nlohmann::json* rates = fields.find("sample_steps_per_sec");
  check(rates && rates->is_array() && rates->size() == tokens.size() && !tokens.empty(),
        "{}: sample_batch_tokens and sample_steps_per_sec are lists of one length, for example [1, 8] and [90, 71]",
        path);
  std::vector<StepCost::Point> points;
  for (size_t i = 0; i < tokens.size(); i++) {
    const nlohmann::json& rate = (*rates)[i];
    check(rate.is_number() && rate.get<double>() > 0, "{}: sample_steps_per_sec {}: numbers above 0 work", path,
          shown_json(rate));
    points.push_back({.tokens = tokens[i], .seconds = 1 / rate.get<double>()});
  }
  return StepCost(std::move(points));
}

}  // namespace

StateOptions state_options(const EngineOptions& o, const ModelConfig& config) {
  StateOptions state;
  const int64_t limit = config.max_position_embeddings;
  const std::string& algorithm = o.speculative_algorithm;
  std::vector<std::string_view> known(std::begin(kAlgorithmsAlone), std::end(kAlgorithmsAlone));
  for (const BlockKind kind : kBlockKinds) known.push_back(name_of(kind));
  check(std::ranges::find(known, algorithm) != known.end(),
        "--speculative-algorithm {}: {} are possible; ngram works with every model", algorithm, fmt::join(known, ", "));
  check(o.chunked_prefill_size >= kPrefillUnit && o.chunked_prefill_size <= kLongestPrefill &&
            o.chunked_prefill_size % kPrefillUnit == 0,
        "--chunked-prefill-size {}: a multiple of {} up to {}; 256 works", o.chunked_prefill_size, kPrefillUnit,
        kLongestPrefill);
  check(o.context_length >= 0 && o.context_length <= limit,
        "--context-length {}: the model takes 1 to {} tokens; {} works", o.context_length, limit,
        std::min(limit, kDefaultContext));
  state.kv_tokens = o.context_length ? o.context_length : std::min(limit, kDefaultContext);
  state.ring = {.T = o.speculative_num_draft_tokens ? o.speculative_num_draft_tokens : kDefaultWindow,
                .F = o.fold_grain,
                .R = o.linear_replayssm_cache_len,
                .policy = policy_of(o.fold_policy)};
  state.rollback = rollback_of(o.state_rollback);
  check_window(state.ring);
  if (algorithm == "none") state.ring.T = 1;
  if (state.rollback == StateRollback::replay) {
    if (state.ring.R == 0) state.ring.R = default_ring_rows(state.ring.T, state.ring.F, state.ring.policy);
    check_ring(state.ring);
  }
  state.checkpoint =
      o.mamba_ssm_dtype == "auto" ? config.mamba_ssm_dtype : dtype_of("--mamba-ssm-dtype", o.mamba_ssm_dtype);
  state.record = dtype_of("--linear-replayssm-record-dtype", o.linear_replayssm_record_dtype);
  state.kv = dtype_of("--kv-cache-dtype", o.kv_cache_dtype);
  return state;
}

VerifyOptions verify_options(const EngineOptions& o) {
  check(std::isfinite(o.simulate_acceptance_length), "--simulate-acceptance-length {}: 3 works",
        o.simulate_acceptance_length);
  VerifyOptions verify{.mode = mode_of(o.ragged_verify_mode),
                       .adaptive = o.speculative_adaptive,
                       .simulate_acceptance_length = o.simulate_acceptance_length};
  if (!o.speculative_dspark_sps_table_path.empty()) verify.cost = read_step_cost(o.speculative_dspark_sps_table_path);
  return verify;
}

int64_t available_memory() {
  std::ifstream info("/proc/meminfo");
  for (std::string key; info >> key;) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && info >> kib) return kib * 1024;
  }
  return INT64_MAX;
}

void check_memory(const PlannedModel& model, const EngineOptions& o) {
  const int64_t weights = model.trunk + model.mtp + model.block_bytes, available = available_memory();
  if (available > INT64_MAX - weights || fits(model, o, {}, weights + available)) return;
  // What is there changes by the minute: values that need less of it are named.
  const std::vector<std::string> ways = ways_to_fit(model, o, 1, weights + available / 8 * 7);
  fail(ErrorKind::out_of_memory, "{}", does_not_fit(model, o, 1, weights + available, ways));
}

void allocate_state(std::optional<StatePool>& pool, const PlannedModel& model, const EngineOptions& o) {
  const MemoryPlan plan = plan_memory(model, o);
  try {
    pool.emplace(plan.shape, plan.options);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::out_of_memory) throw;
    const std::vector<std::string> ways = ways_to_fit(model, o, 1, plan.total() - plan.state.total / 2);
    fail(ErrorKind::out_of_memory, "{}", does_not_fit(model, o, 1, std::nullopt, ways));
  }
}

EngineInfo describe(const HybridModel& model, const StatePool& pool, const EngineOptions& o) {
  EngineInfo info;
  const StatePlan& plan = pool.plan();
  const StateOptions& state = pool.options();
  info.backend = o.backend;
  info.vocabulary = model.config().vocab_size;
  const TensorSource& source = *model.weights().source;
  for (const std::string& name : source.names()) {
    const TensorRef& tensor = *source.find(name);
    info.weight_bytes += static_cast<int64_t>(tensor.bytes);
    info.parameters += static_cast<int64_t>(tensor.bytes / size_of(tensor.dtype));
  }
  info.ragged_verify_mode = o.ragged_verify_mode;
  info.state_rollback = o.state_rollback;
  info.T = state.ring.T, info.R = state.ring.R, info.F = state.ring.F, info.context_length = state.kv_tokens;
  info.checkpoint_bytes = plan.checkpoint_per_seat;
  info.record_bytes = plan.records_per_seat;
  info.conv_bytes = plan.conv_per_seat;
  info.snapshot_bytes = plan_state_as(StateRollback::snapshot, pool.shape(), state).state_per_seat();
  info.kv_bytes_per_token = plan.kv_per_page / state.page_rows;
  info.state_bytes = plan.total;
  return info;
}

}  // namespace deltaring
