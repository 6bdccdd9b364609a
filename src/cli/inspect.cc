#include <fmt/core.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/planned_drafter.h"
#include "engine/memory_plan.h"
#include "model/generation_config.h"
#include "model/tokenizer.h"

namespace deltaring::cli {

namespace {

using nlohmann::json;

struct Flags {
  EngineOptions engine;
  const CLI::Option* algorithm = nullptr;
  bool json = false, scan = false;
};

struct Tally {
  int64_t tensors = 0, parameters = 0, bytes = 0;
};

// What the folder holds, by element type.
std::map<std::string, Tally> tally(const Weights& weights) {
  std::map<std::string, Tally> by_dtype;
  for (const std::string& name : weights.source->names()) {
    const TensorRef* tensor = weights.source->find(name);
    Tally& t = by_dtype[tensor->foreign_dtype.empty() ? deltaring::name_of(tensor->dtype) : tensor->foreign_dtype];
    int64_t elements = 1;
    for (const int64_t extent : tensor->shape) elements *= extent;
    t.tensors++, t.parameters += elements, t.bytes += static_cast<int64_t>(tensor->bytes);
  }
  return by_dtype;
}

// How many experts there are, and how the file has them.
json experts_of(const Weights& weights) {
  const ModelConfig& c = weights.config;
  int64_t layers = 0, fused = 0;
  for (const LayerWeights& layer : weights.layers) {
    if (layer.moe) layers++, fused += layer.moe->fused;
  }
  return {{"count", c.num_experts},
          {"per_token", c.num_experts_per_tok},
          {"intermediate_size", c.moe_intermediate_size},
          {"shared_intermediate_size", c.shared_expert_intermediate_size},
          {"layers", layers},
          {"packing", fused == layers ? "fused"
                      : fused == 0    ? "split"
                                      : "mixed"}};
}

json drafter_of(const BlockWeights& weights) {
  const BlockConfig& c = weights.config;
  int64_t parameters = 0;
  for (const TensorSpec& tensor : expected_tensors(c)) parameters += tensor.elements();
  return {{"algorithm", name_of(c.kind())}, {"layers", c.layers.size()}, {"target_layer_ids", c.target_layer_ids},
          {"drafts", c.drafts()},           {"T", c.window()},           {"confidence_head", c.confidence_head},
          {"parameters", parameters},       {"bytes", weights.bytes}};
}

json json_of(const std::vector<NonFinite>& tensors) {
  json list = json::array();
  for (const NonFinite& n : tensors) list.push_back({{"name", n.name}, {"count", n.count}, {"size", n.size}});
  return list;
}

json report(const Flags& flags) {
  const std::filesystem::path folder = flags.engine.model;
  const ModelConfig config = load_model_config(folder);
  const Weights weights = load_weights(folder, config);
  const Tokenizer tokenizer = Tokenizer::load(folder / "tokenizer.json");
  const GenerationConfig generation = load_generation_config(folder, config);
  EngineOptions engine = flags.engine;
  PlannedModel planned = planned_model(weights);
  const std::optional<BlockWeights> drafter = add_planned_drafter(planned, engine, *flags.algorithm);
  const MemoryPlan memory = plan_memory(planned, engine);
  const StateShape& shape = memory.shape;
  const StateOptions& state = memory.options;
  const StatePlan& plan = memory.state;
  json out = {{"model_type", config.model_type},
              {"layers", config.num_hidden_layers},
              {"gdn_layers", shape.gdn_layers},
              {"full_attention_layers", config.count(LayerKind::full_attention)},
              {"hidden_size", config.hidden_size},
              {"intermediate_size", config.intermediate_size},
              {"vocab_size", config.vocab_size},
              {"tokenizer_ids", tokenizer.size()},
              {"tied_embeddings", weights.lm_head.data == weights.embed_tokens.data},
              {"mtp_head", weights.mtp.has_value()},
              {"Hk", shape.Hk},
              {"Hv", shape.Hv},
              {"K", shape.K},
              {"V", shape.V},
              {"query_heads", config.num_attention_heads},
              {"kv_heads", shape.Hkv},
              {"head_dim", shape.D},
              {"max_position_embeddings", config.max_position_embeddings},
              {"stop_token_ids", generation.eos_token_id},
              {"state_rollback", flags.engine.state_rollback},
              {"T", state.ring.T},
              {"R", state.ring.R},
              {"F", state.ring.F},
              {"checkpoint_dtype", deltaring::name_of(state.checkpoint)},
              {"checkpoint_bytes", plan.checkpoint_per_seat},
              {"record_bytes", plan.records_per_seat},
              {"conv_bytes", plan.conv_per_seat},
              {"snapshot_bytes", plan_state_as(StateRollback::snapshot, shape, state).state_per_seat()},
              {"kv_bytes_per_token", memory.kv_per_token()},
              {"context_length", state.kv_tokens},
              {"state_bytes", plan.total},
              {"scratch_bytes", memory.scratch()}};
  if (config.num_experts > 0) out["experts"] = experts_of(weights);
  if (config.yarn) {
    out["yarn"] = {{"factor", config.yarn->factor},
                   {"original_max_position_embeddings", config.yarn->original_max_position_embeddings},
                   {"attention_factor", config.yarn->attention_factor}};
  }
  if (weights.reordered) out["reordered_bytes"] = weights.reordered->used();
  for (const auto& [dtype, t] : tally(weights)) {
    out["weights"][dtype] = {{"tensors", t.tensors}, {"parameters", t.parameters}, {"bytes", t.bytes}};
  }
  out["notices"] = config.notices;
  for (const std::string& notice : weights.notices) out["notices"].push_back(notice);
  if (drafter) {
    out["block_drafter"] = drafter_of(*drafter);
    for (const std::string& notice : drafter->notices) out["notices"].push_back(notice);
  }
  if (flags.scan) out["non_finite"] = json_of(non_finite(weights));
  if (flags.scan && drafter) out["block_drafter"]["non_finite"] = json_of(non_finite(*drafter));
  return out;
}

std::string bytes_of(const json& r, const char* key) { return human_bytes(r[key].get<double>()); }

void print_state(const json& r) {
  if (r["state_rollback"] == "snapshot") {
    fmt::print("  a request  {} of state with T={} (live state {} {}, snapshots of it, conv {})\n",
               bytes_of(r, "snapshot_bytes"), r["T"].get<int>(), bytes_of(r, "checkpoint_bytes"),
               r["checkpoint_dtype"].get<std::string>(), bytes_of(r, "conv_bytes"));
    return;
  }
  const double ring =
      r["checkpoint_bytes"].get<double>() + r["record_bytes"].get<double>() + r["conv_bytes"].get<double>();
  fmt::print(
      "  a request  {} of state with T={}, R={}, F={} (checkpoint {} {}, ring {}, conv {}); snapshots would take {}\n",
      human_bytes(ring), r["T"].get<int>(), r["R"].get<int>(), r["F"].get<int>(), bytes_of(r, "checkpoint_bytes"),
      r["checkpoint_dtype"].get<std::string>(), bytes_of(r, "record_bytes"), bytes_of(r, "conv_bytes"),
      bytes_of(r, "snapshot_bytes"));
}

// `whose` are the weights.
void print_scan(const char* whose, const json& non_finite) {
  if (non_finite.empty()) fmt::print("  scan       every weight of the {} is finite\n", whose);
  for (const json& n : non_finite) {
    fmt::print("  scan       {} of the {}: {} of {} elements are not finite\n", n["name"].get<std::string>(), whose,
               n["count"].get<int64_t>(), n["size"].get<int64_t>());
  }
}

void print(const Flags& flags, const json& r) {
  const int ffn = r["intermediate_size"].get<int>();
  fmt::print("{}: {}, {} layers ({} GDN, {} full attention), hidden {}{}\n", flags.engine.model,
             r["model_type"].get<std::string>(), r["layers"].get<int>(), r["gdn_layers"].get<int>(),
             r["full_attention_layers"].get<int>(), r["hidden_size"].get<int>(),
             ffn > 0 ? fmt::format(", FFN {}", ffn) : "");
  if (r.contains("experts")) {
    const json& e = r["experts"];
    fmt::print("  experts    {} of {} in {} layers, {} a token, and a shared one of {}; {} in the file\n",
               e["count"].get<int>(), e["intermediate_size"].get<int>(), e["layers"].get<int>(),
               e["per_token"].get<int>(), e["shared_intermediate_size"].get<int>(), e["packing"].get<std::string>());
  }
  fmt::print("  GDN        Hk {}, Hv {}, K {}, V {}\n", r["Hk"].get<int>(), r["Hv"].get<int>(), r["K"].get<int>(),
             r["V"].get<int>());
  fmt::print("  attention  {} query heads, {} kv heads of {}\n", r["query_heads"].get<int>(), r["kv_heads"].get<int>(),
             r["head_dim"].get<int>());
  fmt::print("  vocabulary {} rows, {} tokens, stops at {}; embeddings {}\n", r["vocab_size"].get<int>(),
             r["tokenizer_ids"].get<int>(), r["stop_token_ids"].dump(),
             r["tied_embeddings"].get<bool>() ? "tied" : "untied");
  if (r.contains("yarn")) {
    fmt::print("  YaRN       {} positions times {}, attention factor {:.4f}\n",
               r["yarn"]["original_max_position_embeddings"].get<int64_t>(), r["yarn"]["factor"].get<double>(),
               r["yarn"]["attention_factor"].get<double>());
  }
  for (const auto& [dtype, t] : r["weights"].items()) {
    fmt::print("  weights    {} tensors of {}: {:.1f} M parameters, {}\n", t["tensors"].get<int>(), dtype,
               t["parameters"].get<double>() / 1e6, bytes_of(t, "bytes"));
  }
  if (r.contains("reordered_bytes")) {
    fmt::print("  reordered  {} of projections that the file interleaves\n", bytes_of(r, "reordered_bytes"));
  }
  fmt::print("  drafters   ngram, suffix{}\n", r["mtp_head"].get<bool>() ? ", eagle (MTP head)" : "; no MTP head");
  if (r.contains("block_drafter")) {
    const json& d = r["block_drafter"];
    fmt::print(
        "  drafter    {}: {}, {} layers, up to {} drafts (T={}) from the outputs of layers {}, {:.1f} M parameters, "
        "{}\n",
        flags.engine.speculative_draft_model_path, d["algorithm"].get<std::string>(), d["layers"].get<int>(),
        d["drafts"].get<int>(), d["T"].get<int>(), d["target_layer_ids"].dump(), d["parameters"].get<double>() / 1e6,
        bytes_of(d, "bytes"));
  }
  print_state(r);
  fmt::print("  KV         {} a token, {} tokens of context (the model's limit is {})\n",
             bytes_of(r, "kv_bytes_per_token"), r["context_length"].get<int64_t>(),
             r["max_position_embeddings"].get<int64_t>());
  for (const json& notice : r["notices"]) fmt::print("  notice     {}\n", notice.get<std::string>());
  if (!r.contains("non_finite")) return;
  print_scan("model", r["non_finite"]);
  if (r.contains("block_drafter")) print_scan("drafter", r["block_drafter"]["non_finite"]);
}

}  // namespace

void add_inspect(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("inspect", "Say what a model folder holds and what a request needs");
  add_state_flags(*command, flags->engine);
  add_speculation_flags(*command, flags->engine);
  flags->algorithm = command->get_option("--speculative-algorithm")
                         ->description("as for generate; default: eagle where the model has an MTP head")
                         ->default_str("");
  command->add_flag("--scan", flags->scan, "read every weight and report those that are not finite");
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags, &exit_code] {
    const json r = report(*flags);
    if (flags->json)
      fmt::print("{}\n", r.dump());
    else
      print(*flags, r);
    flush_output();
    exit_code = kSuccess;
  });
}

}  // namespace deltaring::cli
