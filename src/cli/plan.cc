#include <fmt/core.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/planned_drafter.h"
#include "engine/load.h"
#include "engine/memory_plan.h"
#include "model/json_fields.h"

namespace deltaring::cli {

namespace {

using nlohmann::json;

struct Flags {
  EngineOptions engine;
  const CLI::Option* algorithm = nullptr;
  std::string memory;
  int64_t requests = 1;
  bool json = false;
};

// One way to undo rejected tokens.
struct Column {
  EngineOptions options;
  MemoryPlan plan;            // with the KV of one whole context
  int64_t kv_tokens = 0;      // that fit beside the requests
  int64_t kv_cache = 0;       // their bytes
  int64_t most_requests = 0;  // that fit beside the KV of one context

  bool fits() const { return kv_tokens >= plan.options.kv_tokens; }
  int64_t before_kv() const { return plan.total() - plan.kv_cache(); }
  int64_t of_all(int64_t per_seat) const { return plan.options.seats * per_seat; }
};

struct Report {
  PlannedModel model;
  int64_t memory = 0;
  Column replay, snapshot;
  std::vector<std::string> works;  // when the rollback that was asked for does not fit: what would

  const Column& asked(const Flags& flags) const { return flags.engine.state_rollback == "replay" ? replay : snapshot; }
};

// Bytes from 288GiB, 288GB, 24g (binary, as with docker), 1073741824.
int64_t parse_bytes(const char* flag, const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  std::string unit(rest + (rest != end && *rest == ' '), end);
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  double factor = unit.empty() || unit == "b" ? 1 : 0;
  for (int power = 1; power <= 4; power++) {
    const std::string letter(1, "kmgt"[power - 1]);
    if (unit == letter || unit == letter + "i" || unit == letter + "ib") factor = std::pow(1024.0, power);
    if (unit == letter + "b") factor = std::pow(1000.0, power);
  }
  const double bytes = value * factor;
  check(error == std::errc() && bytes >= 1 && bytes <= std::pow(2.0, 60),
        "{} {}: bytes, alone or with KiB, MiB, GiB, TiB (1024), KB, MB, GB, TB (1000) or k, m, g, t (1024); 24GiB "
        "works",
        flag, text);
  return static_cast<int64_t>(bytes);
}

// The fewest bytes of a round size that hold `bytes`, as --memory takes them.
std::string round_up(int64_t bytes) {
  const std::pair<const char*, int> units[] = {{"GiB", 30}, {"MiB", 20}, {"KiB", 10}};
  for (const auto& [unit, shift] : units) {
    if (bytes >> shift >= 16) return fmt::format("{}{}", ((bytes - 1) >> shift) + 1, unit);
  }
  return std::to_string(bytes);
}

// A model folder, with or without its weights, or a config.json alone.
PlannedModel read_model(const std::filesystem::path& path) {
  std::error_code ignored;  // load_model_config says what cannot be looked at
  if (std::filesystem::is_regular_file(path, ignored)) {
    return planned_model(parse_model_config(read_text(path), path.string()));
  }
  const ModelConfig config = load_model_config(path);
  const auto has = [&](const char* name) { return std::filesystem::exists(path / name, ignored); };
  if (!has("model.safetensors") && !has("model.safetensors.index.json")) return planned_model(config);
  return planned_model(load_weights(path, config));
}

Column plan_column(const PlannedModel& model, EngineOptions options, const char* rollback, int64_t requests,
                   int64_t memory) {
  options.state_rollback = rollback;
  Column column{.options = options, .plan = plan_memory(model, options, {.requests = requests})};
  column.kv_tokens = kv_tokens_that_fit(model, options, requests, memory);
  if (column.kv_tokens > 0) {
    column.kv_cache = plan_memory(model, options, {.requests = requests, .kv_tokens = column.kv_tokens}).kv_cache();
  }
  column.most_requests = requests_that_fit(model, options, memory);
  return column;
}

Report make_report(Flags& flags) {
  EngineOptions& o = flags.engine;
  Report r{.model = read_model(o.model)};
  add_planned_drafter(r.model, o, *flags.algorithm);
  state_options(o, r.model.config);  // throws for what the two columns replace
  r.memory = flags.memory.empty() ? available_memory() : parse_bytes("--memory", flags.memory);
  r.replay = plan_column(r.model, o, "replay", flags.requests, r.memory);
  r.snapshot = plan_column(r.model, o, "snapshot", flags.requests, r.memory);
  const Column& asked = r.asked(flags);
  if (asked.fits()) return r;
  r.works = ways_to_fit(r.model, o, flags.requests, r.memory);
  if (!flags.memory.empty()) r.works.push_back("--memory " + round_up(asked.plan.total()));
  return r;
}

json to_json(const Column& c) {
  const StatePlan& state = c.plan.state;
  return {{"fits", c.fits()},
          {"weight_bytes", c.plan.weights},
          {"drafter_bytes", c.plan.drafter},
          {"scratch_bytes", c.plan.scratch()},
          {"checkpoint_bytes", c.of_all(state.checkpoint_per_seat)},
          {"record_bytes", c.of_all(state.records_per_seat)},
          {"snapshot_bytes", c.of_all(state.snapshots_per_seat)},
          {"conv_bytes", c.of_all(state.conv_per_seat)},
          {"state_bytes_per_request", state.state_per_seat()},
          {"bytes_before_kv", c.before_kv()},
          {"kv_bytes_per_token", c.plan.kv_per_token()},
          {"kv_tokens", c.kv_tokens},
          {"kv_bytes", c.kv_cache},
          {"total_bytes", c.plan.total()},
          {"max_requests", c.most_requests}};
}

json to_json(const Flags& flags, const Report& r) {
  const StateOptions& state = r.replay.plan.options;
  const EngineOptions& o = r.asked(flags).options;
  return {{"memory_bytes", r.memory},
          {"max_running_requests", flags.requests},
          {"context_length", state.kv_tokens},
          {"drafter", o.speculative_algorithm},
          {"T", state.ring.T},
          {"gamma", state.ring.T - 1},
          {"R", state.ring.R},
          {"F", state.ring.F},
          {"checkpoint_dtype", name_of(state.checkpoint)},
          {"record_dtype", name_of(state.record)},
          {"kv_dtype", name_of(state.kv)},
          {"state_rollback", o.state_rollback},
          {"fits", r.asked(flags).fits()},
          {"works", r.works},
          {"replay", to_json(r.replay)},
          {"snapshot", to_json(r.snapshot)}};
}

// 1,234,567
std::string grouped(int64_t n) {
  return n < 1000 ? std::to_string(n) : fmt::format("{},{:03}", grouped(n / 1000), n % 1000);
}

std::string size(int64_t bytes) { return bytes > 0 ? human_bytes(static_cast<double>(bytes)) : "-"; }

void print(const Flags& flags, const Report& r) {
  const ModelConfig& config = r.model.config;
  const Column &a = r.replay, &b = r.snapshot;
  const StateOptions& state = a.plan.options;
  const RingOptions& ring = state.ring;
  const auto row = [](const char* label, const std::string& replay, const std::string& snapshot,
                      const std::string& note) {
    fmt::print("{:<19}{:>13}{:>13}{}{}\n", label, replay, snapshot, note.empty() ? "" : "   ", note);
  };
  const auto sizes = [&](const char* label, int64_t replay, int64_t snapshot, const std::string& note) {
    row(label, size(replay), size(snapshot), note);
  };
  fmt::print("{}: {} layers ({} GDN, {} full attention), {}\n", flags.engine.model, config.num_hidden_layers,
             config.count(LayerKind::gdn), config.count(LayerKind::full_attention),
             config.fp8 ? "float8 in 128 x 128 blocks" : name_of(config.dtype));
  fmt::print("{} request{} at once, context {}, T={} (anchor + gamma={} drafts), memory {}{}\n\n", flags.requests,
             flags.requests == 1 ? "" : "s", state.kv_tokens, ring.T, ring.T - 1, size(r.memory),
             flags.memory.empty() ? " (free on this machine)" : "");
  row("", "replay", "snapshot", "");
  sizes("weights", a.plan.weights, b.plan.weights, "");
  sizes("drafter", a.plan.drafter, b.plan.drafter,
        !a.plan.drafter ? ""
        : r.model.block ? name_of(r.model.block->kind())
                        : "eagle: the MTP head");
  sizes("scratch", a.plan.scratch(), b.plan.scratch(), fmt::format("{} tokens a pass", a.plan.step_tokens));
  sizes("checkpoints", a.of_all(a.plan.state.checkpoint_per_seat), b.of_all(b.plan.state.checkpoint_per_seat),
        fmt::format("{} a request, {}", size(a.plan.state.checkpoint_per_seat), name_of(state.checkpoint)));
  sizes("rings", a.of_all(a.plan.state.records_per_seat), 0,
        fmt::format("R={} records a request of {}, {}; F={}", ring.R, size(a.plan.state.records_per_seat / ring.R),
                    name_of(state.record), ring.F));
  sizes("snapshots", 0, b.of_all(b.plan.state.snapshots_per_seat),
        ring.T > 1 ? fmt::format("T={} states a request", ring.T) : "");
  sizes("conv inputs", a.of_all(a.plan.state.conv_per_seat), b.of_all(b.plan.state.conv_per_seat),
        fmt::format("{} and {} rows a request, float32", a.plan.state.conv_rows, b.plan.state.conv_rows));
  fmt::print("\n");
  sizes("total before KV", a.before_kv(), b.before_kv(), "");
  sizes("KV cache", a.kv_cache, b.kv_cache, "what is left");
  sizes("KV a token", a.plan.kv_per_token(), b.plan.kv_per_token(),
        fmt::format("{} layers, {}", a.plan.shape.kv_layers + a.plan.shape.draft_layers, name_of(state.kv)));
  row("KV tokens that fit", grouped(a.kv_tokens), grouped(b.kv_tokens),
      fmt::format("at {} request{}", flags.requests, flags.requests == 1 ? "" : "s"));
  row("requests that fit", grouped(a.most_requests), grouped(b.most_requests), "beside the KV of one context");
  fmt::print("\n");
  row("fits", a.fits() ? "yes" : "no", b.fits() ? "yes" : "no", "the requests and the KV of one context");
  for (const std::string& notice : config.notices) fmt::print("\nnotice: {}\n", notice);
}

int plan(Flags& flags) {
  const Report r = make_report(flags);
  if (flags.json)
    fmt::print("{}\n", to_json(flags, r).dump());
  else
    print(flags, r);
  flush_output();
  if (r.asked(flags).fits()) return kSuccess;
  fail(ErrorKind::out_of_memory, "{}", does_not_fit(r.model, flags.engine, flags.requests, r.memory, r.works));
}

}  // namespace

void add_plan(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("plan", "Say what a model and its requests need in memory, and how much fits, before loading");
  add_state_flags(*command, flags->engine);
  command->get_option("--model")->description("model folder, or a config.json alone");
  add_speculation_flags(*command, flags->engine);
  flags->algorithm = command->get_option("--speculative-algorithm")
                         ->description("as for generate; default: eagle where the model has an MTP head")
                         ->default_str("");
  add_prefill_flags(*command, flags->engine);
  command->add_option("--memory", flags->memory,
                      "bytes for everything: 288GiB, 288GB, 24g; default: what is free on this machine");
  add_number(*command, "--max-running-requests", flags->requests, "requests at once", 16)->capture_default_str();
  command->add_flag("--json", flags->json, "print one JSON object");
  command->footer(
      "The plan is the engine's own: pools and scratch are allocated by it. A request that runs owns one state and R\n"
      "records; published figures for Qwen3.8-27B count 129 rows for 128 requests (--max-running-requests 129), and\n"
      "their ring of corrected values in hi and lo halves holds 16 tokens where ours holds R raw records. Exit code "
      "2:\n"
      "it does not fit; the error names flags and values with which it does.");
  command->callback([flags, &exit_code] { exit_code = plan(*flags); });
}

}  // namespace deltaring::cli
