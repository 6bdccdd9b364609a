// The plan against what is really allocated, and what it says fits against what does.
#include "engine/memory_plan.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <random>
#include <variant>

#include "backends/tables.h"
#include "engine/engine_testing.h"
#include "engine/load.h"
#include "model/loader_testing.h"
#include "support/family.h"
#include "support/rig.h"

namespace deltaring::test {
namespace {

constexpr double kGiB = int64_t{1} << 30;

ModelConfig config_27b() { return load_model_config(source_dir() / "tests/cli/qwen3.8-27b"); }

void expect_within_1_percent(int64_t real, int64_t planned, const std::string& where) {
  EXPECT_NEAR(static_cast<double>(real) / static_cast<double>(planned), 1, 0.01)
      << where << ": " << real << " bytes, planned " << planned;
}

// Options of every kind; large enough that an allocation that the plan forgot is more than 1 %.
struct Case {
  ModelConfig config = mini_config();
  EngineOptions options;
  int64_t requests;

  explicit Case(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](auto... values) {
      const std::common_type_t<decltype(values)...> list[] = {values...};
      return list[random() % sizeof...(values)];
    };
    const auto dtype = [&] { return std::string(pick("float32", "bfloat16", "float16")); };
    config.hidden_size = pick(64, 96), config.intermediate_size = pick(64, 160), config.vocab_size = pick(500, 2000);
    config.linear_num_value_heads = pick(2, 4), config.linear_key_head_dim = pick(64, 128);
    config.linear_value_head_dim = pick(64, 128), config.head_dim = 64, config.tie_word_embeddings = pick(true, false);
    if (pick(false, true)) {
      config.model_type = pick("qwen3_5_moe_text", "qwen3_next"), config.intermediate_size = 0;
      config.num_experts = 6, config.num_experts_per_tok = pick(1, 3);
      config.moe_intermediate_size = pick(64, 160), config.shared_expert_intermediate_size = pick(64, 160);
    }
    requests = pick(1, 5, 24);
    options.speculative_algorithm = pick("none", "ngram", "eagle");
    options.speculative_num_draft_tokens = pick(1, 3, 8, 20);
    options.state_rollback = pick("replay", "snapshot");
    options.linear_replayssm_cache_len = pick(0, 64);
    options.linear_replayssm_record_dtype = dtype(), options.kv_cache_dtype = dtype();
    options.mamba_ssm_dtype = pick("auto", "bfloat16");
    options.fold_grain = pick(8, 16), options.fold_policy = pick("grid", "every");
    options.context_length = pick(200, 4096), options.chunked_prefill_size = pick(1024, 4096);
  }

  std::string text() const {
    return options.speculative_algorithm + " T=" + std::to_string(options.speculative_num_draft_tokens) + " " +
           options.state_rollback + ", requests " + std::to_string(requests);
  }
};

#ifndef __SANITIZE_ADDRESS__  // whose heap is mappings of its own
// Address space of this process in bytes. Arenas are mappings, so it counts them whole whether touched or not.
int64_t mapped_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// A wrong scratch list, a second stepper forgotten or a ring too many shows here.
TEST(MemoryPlan, EqualsWhatIsAllocated) {
  std::map<std::string, int> seen;
  for (uint64_t seed = 0; seed < 24; seed++) {
    const Case c(seed);
    const EngineOptions& o = c.options;
    const OpTable& ops = backend("cpu");
    const auto stream = ops.make_stream(1);
    Weights weights = random_model(c.config, seed);
    const MemoryPlan plan = plan_memory(planned_model(weights), o, {.requests = c.requests});
    const int64_t before = mapped_bytes();
    HybridModel model(std::move(weights), ops, *stream, plan.step_tokens);
    StatePool pool(plan.shape, plan.options);
    std::optional<MtpDrafter> drafter;
    if (o.speculative_algorithm == "eagle") drafter.emplace(model, pool, c.config.vocab_size);
    SpecStepper speculative(model, pool, drafter ? &*drafter : nullptr, o.chunked_prefill_size, c.config.vocab_size);
    SpecStepper plain(model, pool, nullptr, o.chunked_prefill_size, c.config.vocab_size);
    expect_within_1_percent(mapped_bytes() - before, plan.scratch() + plan.state.total, c.text());
    EXPECT_EQ(plan.total(), plan.weights + plan.drafter + plan.scratch() + plan.state.total);
    seen[o.state_rollback]++, seen[o.speculative_algorithm]++, seen[c.config.model_type]++;
  }
  for (const char* kind : {"replay", "snapshot", "none", "ngram", "eagle", "qwen3_5_moe_text", "qwen3_next"})
    EXPECT_GE(seen[kind], 3) << kind;
}

// The whole of an engine, from the file to the last scratch. Its tokenizer is not planned, so the rest is made large.
TEST(MemoryPlan, EqualsWhatAnEngineMaps) {
  for (const char* rollback : {"replay", "snapshot"}) {
    for (const char* algorithm : {"none", "eagle"}) {
      EngineOptions o = engine_options(algorithm, 8, 8192);
      o.state_rollback = rollback, o.chunked_prefill_size = 16384;
      { const Engine warm_up(o); }
      const int64_t before = mapped_bytes();
      const Engine engine(o);
      const int64_t real = mapped_bytes() - before;
      const MemoryPlan plan = plan_memory(planned_model(load_folder(kTinyPy)), o);
      const int64_t mtp = algorithm == std::string("none") ? planned_model(load_folder(kTinyPy)).mtp : 0;
      expect_within_1_percent(real, plan.total() + mtp, std::string(rollback) + " " + algorithm);
      EXPECT_EQ(engine.info().state_bytes, plan.state.total);
    }
  }
}
#endif

int64_t floats_of(const LayerWeights& w) {
  size_t count = 0;
  for (const auto* vector : {&w.input_layernorm, &w.post_attention_layernorm, &w.attention.q_norm, &w.attention.k_norm,
                             &w.gdn.conv, &w.gdn.A_log, &w.gdn.dt_bias, &w.gdn.norm}) {
    count += vector->size();
  }
  return static_cast<int64_t>(count);
}

// Stored bytes, scales and every expert among them, and copies, to the byte.
TEST(MemoryPlan, CountsTheWeights) {
  std::vector<std::pair<std::string, ModelConfig>> models = family();
  models.emplace_back("dense", mini_config());
  for (const auto& [name, config_] : models) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      ModelConfig config = config_;
      config.dtype = dtype;
      const Weights weights = random_model(config, 1, dtype);
      int64_t stored = 0, reordered = 0,
              copies = static_cast<int64_t>(weights.norm.size()) + floats_of(weights.mtp->layer) +
                       3 * weights.config.hidden_size;
      for (const std::string& tensor : weights.source->names()) {
        const auto bytes = static_cast<int64_t>(weights.source->find(tensor)->bytes);
        stored += bytes;
        if (tensor.find("in_proj_qkvz") != std::string::npos || tensor.find("in_proj_ba") != std::string::npos) {
          reordered += bytes;
        }
      }
      for (const LayerWeights& layer : weights.layers) copies += floats_of(layer);
      const PlannedModel bound = planned_model(weights);
      EXPECT_EQ(bound.trunk + bound.mtp, stored + reordered + 4 * copies) << name;
      EXPECT_EQ(reordered > 0, config.interleaved_gdn()) << name;
      EXPECT_GT(bound.mtp, 0);
      const PlannedModel expected = planned_model(config);
      expect_within_1_percent(bound.trunk, expected.trunk, name + ", the config alone");
      expect_within_1_percent(bound.mtp, expected.mtp, name + ", the config alone");
    }
  }
}

// Published: 24.70 GB of codes, and 3.08 G elements of bf16 with the vision tower's 456 M, of which nothing is loaded.
TEST(MemoryPlan, PublishedSizeOf27BInFp8) {
  ModelConfig config = config_27b();
  config.fp8 =
      BlockFp8{.modules_to_not_convert = {"lm_head", "linear_attn.in_proj_a", "linear_attn.in_proj_b", "mtp.fc"}};
  int64_t codes = 0, scales = 0, rest = 0;
  for (const TensorSpec& tensor : expected_tensors(config)) {
    (tensor.dtype == DType::f8_e4m3 ? codes : tensor.name.ends_with("_scale_inv") ? scales : rest) += tensor.elements();
  }
  EXPECT_NEAR(static_cast<double>(codes), 24.70e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(rest), 3.08e9 - 0.456e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(scales), static_cast<double>(codes) / 16384, 1e-3 * static_cast<double>(scales));
  const PlannedModel model = planned_model(config);
  EXPECT_NEAR(static_cast<double>(model.trunk + model.mtp), static_cast<double>(codes + 4 * scales + 2 * rest), 0.03e9);
}

// Published: 129 rows of 8 bf16 snapshots are 72.6 GiB; a ring of 16 rows in two halves 3.04 GiB; the MTP head has
// 849,398,784 bytes, the text model 53.79 GB.
TEST(MemoryPlan, PublishedComparisonOf27B) {
  EngineOptions o;
  o.speculative_algorithm = "eagle", o.speculative_num_draft_tokens = 8;
  o.mamba_ssm_dtype = o.linear_replayssm_record_dtype = o.kv_cache_dtype = "bfloat16";
  const PlannedModel model = planned_model(config_27b());
  const MemoryPlan replay = plan_memory(model, o, {.requests = 129});
  o.state_rollback = "snapshot";
  const MemoryPlan snapshot = plan_memory(model, o, {.requests = 129});
  EXPECT_NEAR(static_cast<double>(129 * snapshot.state.snapshots_per_seat) / kGiB, 72.6, 0.05);
  EXPECT_NEAR(static_cast<double>(129 * replay.state.records_per_seat) / kGiB, 3.04, 0.06);
  EXPECT_EQ(replay.options.ring.R, 32);
  EXPECT_EQ(replay.weights, snapshot.weights);
  EXPECT_EQ(replay.scratch(), snapshot.scratch());
  const int64_t copies = 4 * (5 * 5120 + 2 * 256);  // f32, of five norms of the hidden size and two of a head
  EXPECT_EQ(replay.drafter, 849398784 + copies);
  EXPECT_NEAR(static_cast<double>(replay.weights) / 1e9, 53.79, 0.02);
}

TEST(MemoryPlan, TheHeadCostsWhereItDrafts) {
  const PlannedModel model = planned_model(config_27b());
  EngineOptions o;
  o.kv_cache_dtype = "bfloat16";
  for (const char* algorithm : {"none", "ngram", "eagle"}) {
    o.speculative_algorithm = algorithm;
    const MemoryPlan plan = plan_memory(model, o);
    const bool head = algorithm == std::string("eagle");
    EXPECT_EQ(plan.kv_per_token(), (head ? 17 : 16) * 4096) << algorithm;
    EXPECT_EQ(plan.drafter > 0, head) << algorithm;
    EXPECT_EQ(plan.drafter_scratch > 0, head) << algorithm;
  }
}

TEST(MemoryPlan, WhatFitsIsTheMost) {
  int some = 0;
  for (uint64_t seed = 0; seed < 40; seed++) {
    const Case c(seed);
    const PlannedModel model = planned_model(c.config);
    const int64_t need = plan_memory(model, c.options, {.requests = c.requests}).total();
    for (const int64_t memory : {need / 4, need - 1, need, need + 12345, 3 * need}) {
      const int64_t tokens = kv_tokens_that_fit(model, c.options, c.requests, memory);
      const int64_t requests = requests_that_fit(model, c.options, memory);
      const auto fit = [&](int64_t r, int64_t t) {
        return fits(model, c.options, {.requests = r, .kv_tokens = t}, memory);
      };
      EXPECT_TRUE(tokens == 0 || fit(c.requests, tokens)) << c.text();
      EXPECT_FALSE(fit(c.requests, tokens + 1)) << c.text();
      EXPECT_EQ(tokens >= c.options.context_length, memory >= need) << c.text();
      EXPECT_TRUE(requests == 0 || fit(requests, c.options.context_length)) << c.text();
      EXPECT_FALSE(fit(requests + 1, c.options.context_length)) << c.text();
      EXPECT_EQ(requests >= c.requests, memory >= need) << c.text();
      some += tokens > 0 && requests > 0;
    }
  }
  EXPECT_GT(some, 100);
}

using Field = std::variant<int64_t EngineOptions::*, std::string EngineOptions::*>;

const std::map<std::string, Field> kFields = {
    {"--context-length", &EngineOptions::context_length},
    {"--speculative-num-draft-tokens", &EngineOptions::speculative_num_draft_tokens},
    {"--chunked-prefill-size", &EngineOptions::chunked_prefill_size},
    {"--state-rollback", &EngineOptions::state_rollback},
    {"--kv-cache-dtype", &EngineOptions::kv_cache_dtype},
    {"--mamba-ssm-dtype", &EngineOptions::mamba_ssm_dtype},
    {"--linear-replayssm-record-dtype", &EngineOptions::linear_replayssm_record_dtype}};

// Every flag that is named makes the plan fit with the value named, and no larger value would.
TEST(MemoryPlan, WaysToFitWork) {
  std::map<std::string, int> named;
  for (uint64_t seed = 0; seed < 60; seed++) {
    const Case c(seed);
    const PlannedModel model = planned_model(c.config);
    const double need = static_cast<double>(plan_memory(model, c.options, {.requests = c.requests}).total());
    for (const double share : {0.2, 0.5, 0.8, 0.95}) {
      const int64_t memory = static_cast<int64_t>(need * share);
      for (const std::string& way : ways_to_fit(model, c.options, c.requests, memory)) {
        const std::string flag = way.substr(0, way.find(' ')), value = way.substr(way.find(' ') + 1);
        named[flag]++;
        EngineOptions o = c.options;
        if (flag == "--max-running-requests") {
          EXPECT_LT(std::stoll(value), c.requests) << way;
          EXPECT_TRUE(fits(model, o, {.requests = std::stoll(value)}, memory)) << way;
          EXPECT_FALSE(fits(model, o, {.requests = std::stoll(value) + 1}, memory)) << way;
          continue;
        }
        ASSERT_TRUE(kFields.contains(flag)) << way;
        const Field& field = kFields.at(flag);
        if (const auto* text = std::get_if<std::string EngineOptions::*>(&field)) {
          o.** text = value;
          EXPECT_TRUE(fits(model, o, {.requests = c.requests}, memory)) << way;
          continue;
        }
        int64_t EngineOptions::*const number = std::get<int64_t EngineOptions::*>(field);
        o.*number = std::stoll(value);
        EXPECT_LT(o.*number, c.options.*number) << way;
        EXPECT_TRUE(fits(model, o, {.requests = c.requests}, memory)) << way;
        o.*number += flag == "--speculative-num-draft-tokens" ? 1 : 64;
        EXPECT_FALSE(fits(model, o, {.requests = c.requests}, memory)) << way << " is not the largest";
      }
    }
  }
  EXPECT_GT(named["--max-running-requests"], 10);
  for (const auto& [flag, field] : kFields) EXPECT_GT(named[flag], 0) << flag;
}

// More than any machine has; what is said to work does.
TEST(MemoryPlan, TheEngineRefusesWhatIsNotThere) {
  PlannedModel model = planned_model(config_27b());
  model.config.max_position_embeddings = int64_t{1} << 30;
  EngineOptions o;
  o.context_length = int64_t{1} << 30;
  try {
    check_memory(model, o);
    FAIL() << "128 TiB of KV";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::out_of_memory);
    const std::string message = e.what(), flag = "--context-length ";
    EXPECT_NE(message.find(flag + "1073741824"), std::string::npos) << message;
    const size_t last = message.rfind(flag);
    ASSERT_NE(last, message.find(flag)) << message;
    o.context_length = std::stoll(message.substr(last + flag.size()));
    EXPECT_GT(o.context_length, 0) << message;
    EXPECT_NO_THROW(check_memory(model, o)) << message;
  }
}

TEST(MemoryPlan, RefusesCountsThatMakeNoSense) {
  const PlannedModel model = planned_model(mini_config());
  for (const int64_t requests : {INT64_MIN, int64_t{-1}, int64_t{0}, (int64_t{1} << 20) + 1, INT64_MAX}) {
    testing::expect_error(ErrorKind::invalid_argument, {"--max-running-requests", std::to_string(requests), "16 works"},
                          [&] { plan_memory(model, {}, {.requests = requests}); });
  }
  EXPECT_NO_THROW(plan_memory(model, {}, {.requests = 16}));
  EXPECT_THROW(plan_memory(model, {}, {.kv_tokens = -1}), Error);
}

TEST(StateOptions, RollbackAndRecordDtype) {
  const ModelConfig config = mini_config();
  EngineOptions o;
  EXPECT_EQ(state_options(o, config).rollback, StateRollback::replay);
  EXPECT_EQ(state_options(o, config).record, DType::f32);
  o.state_rollback = "snapshot", o.linear_replayssm_record_dtype = "bfloat16";
  EXPECT_EQ(state_options(o, config).rollback, StateRollback::snapshot);
  EXPECT_EQ(state_options(o, config).record, DType::bf16);
  o.linear_replayssm_cache_len = 17;
  EXPECT_NO_THROW(state_options(o, config)) << "snapshots have no ring";
  o.state_rollback = "undo";
  testing::expect_error(ErrorKind::invalid_argument, {"--state-rollback undo", "replay works"},
                        [&] { state_options(o, config); });
  o.state_rollback = "replay", o.linear_replayssm_cache_len = 0, o.linear_replayssm_record_dtype = "int8";
  testing::expect_error(ErrorKind::invalid_argument, {"--linear-replayssm-record-dtype int8", "float32 works"},
                        [&] { state_options(o, config); });
}

}  // namespace
}  // namespace deltaring::test
