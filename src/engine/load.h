// From options to what the engine is made of.
#pragma once
#include <functional>

#include "deltaring/engine.h"
#include "model/hybrid.h"
#include "state/plan.h"

namespace deltaring {

// One seat, sized for the options. Throws Error(invalid_argument) naming the flag and a value that works.
StateOptions state_options(const EngineOptions& options, const ModelConfig& config);

// Throws Error(out_of_memory) when the plan exceeds the memory that the system says is available.
void check_memory(const StatePlan& plan, const StateOptions& state);

// Brings every page of the weights into memory and reports the fraction done.
void read_weights(const Weights& weights, const std::function<void(double)>& on_progress);

EngineInfo describe(const HybridModel& model, const StatePool& pool, const EngineOptions& options);

}  // namespace deltaring
