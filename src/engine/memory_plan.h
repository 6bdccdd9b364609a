// What a model with its requests costs in memory, before anything is allocated: the engine loads by this plan and
// `deltaring plan` prints it. All figures are bytes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deltaring/engine.h"
#include "draft/block_weights.h"
#include "model/weights.h"
#include "state/plan.h"

namespace deltaring {

// A model as a plan sees it: its config, and its tensors as stored plus the copies that are made of some of them: f32
// of vectors, and Qwen3-Next's projections in another order.
struct PlannedModel {
  ModelConfig config;
  int64_t trunk = 0;                 // what decoding without a drafter needs
  int64_t mtp = 0;                   // the MTP head; 0 when there is none
  std::optional<BlockConfig> block;  // the block drafter, if there is one, and its tensors
  int64_t block_bytes = 0;
};

PlannedModel planned_model(const ModelConfig& config);  // the tensors such a model has, in the config's dtypes
PlannedModel planned_model(const Weights& weights);     // those that are bound
void add_drafter(PlannedModel& model, const BlockWeights& weights);

struct Capacity {
  int64_t requests = 1;   // at once
  int64_t kv_tokens = 0;  // positions that all requests together can hold; 0 = one whole context
};

struct MemoryPlan {
  StateShape shape;
  StateOptions options;  // with seats and kv_tokens of the capacity
  StatePlan state;       // what the pool allocates
  int64_t weights = 0;
  int64_t drafter = 0;          // weights of the MTP head or the block drafter that drafts
  int64_t step_tokens = 0;      // the longest step or prefill pass
  int64_t layer_scratch = 0;    // of Decoder
  int64_t step_scratch = 0;     // of both steppers, with and without drafts
  int64_t drafter_scratch = 0;  // of it

  int64_t scratch() const { return layer_scratch + step_scratch + drafter_scratch; }
  int64_t kv_cache() const { return state.pages * state.kv_per_page; }
  int64_t kv_per_token() const { return state.kv_per_page / options.page_rows; }
  int64_t total() const { return weights + drafter + scratch() + state.total; }
};

// Throws Error(invalid_argument) naming the flag and a value that works, Error(out_of_memory) for what no int64 holds.
MemoryPlan plan_memory(const PlannedModel& model, const EngineOptions& options, const Capacity& capacity = {});

// Whether that plan fits into `memory` bytes. Throws for invalid options only.
bool fits(const PlannedModel& model, const EngineOptions& options, const Capacity& capacity, int64_t memory);

// The most KV tokens that fit beside `requests` requests; 0 = not one page a request.
int64_t kv_tokens_that_fit(const PlannedModel& model, const EngineOptions& options, int64_t requests, int64_t memory);

// The most requests that fit beside the KV of one whole context; 0 = none.
int64_t requests_that_fit(const PlannedModel& model, const EngineOptions& options, int64_t memory);

// For requests that do not fit beside the KV of one whole context: single flags that change this, each with the largest
// value that does, "--max-running-requests 97". Empty when no flag alone is enough.
std::vector<std::string> ways_to_fit(const PlannedModel& model, const EngineOptions& options, int64_t requests,
                                     int64_t memory);

// The error about them: what they need, what is there (where that is known) and which of `ways` works.
std::string does_not_fit(const PlannedModel& model, const EngineOptions& options, int64_t requests,
                         std::optional<int64_t> memory, const std::vector<std::string>& ways);

}  // namespace deltaring
