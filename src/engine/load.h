// From options to what the engine is made of.
#pragma once
#include <optional>

#include "deltaring/engine.h"
#include "engine/memory_plan.h"
#include "model/hybrid.h"
#include "spec/step.h"

namespace deltaring {

// One seat, sized for the options. Throws Error(invalid_argument) naming the flag and a value that works.
StateOptions state_options(const EngineOptions& options, const ModelConfig& config);

// How drafts are verified. Throws as state_options; whether the drafter can do it is checked by the stepper.
VerifyOptions verify_options(const EngineOptions& options);

// Bytes that this machine could give out now, or a number that nothing exceeds where the system does not say.
int64_t available_memory();

// Throws Error(out_of_memory) naming flags and values that fit when what the plan allocates beside the mapped weights
// is not available.
void check_memory(const PlannedModel& model, const EngineOptions& options);

// Makes the pool; refused memory becomes the same error.
void allocate_state(std::optional<StatePool>& pool, const PlannedModel& model, const EngineOptions& options);

EngineInfo describe(const HybridModel& model, const StatePool& pool, const EngineOptions& options);

}  // namespace deltaring
