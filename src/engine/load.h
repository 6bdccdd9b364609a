// From options to what the engine is made of.
#pragma once
#include <optional>

#include "deltaring/engine.h"
#include "model/hybrid.h"
#include "state/plan.h"

namespace deltaring {

// One seat, sized for the options. Throws Error(invalid_argument) naming the flag and a value that works.
StateOptions state_options(const EngineOptions& options, const ModelConfig& config);

// Throws Error(out_of_memory) naming --context-length and one that fits when the plan exceeds the available memory.
void check_memory(const StatePlan& plan, const StateOptions& state);

// Makes the pool; refused memory becomes the same error.
void allocate_state(std::optional<StatePool>& pool, const StateShape& shape, const StateOptions& state);

EngineInfo describe(const HybridModel& model, const StatePool& pool, const EngineOptions& options);

}  // namespace deltaring
