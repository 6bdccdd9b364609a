// The table of what a step costs, filled at the start.
#pragma once
#include "model/hybrid.h"
#include "spec/budget.h"

namespace deltaring {

// Times verify steps of 1, 2, 4, ... tokens on the pool's free seats: nothing is committed, so nothing is left of them.
// hidden [tokens, H], logits [tokens, vocab]: scratch for seats * T tokens. Throws Error where there is no room for one
// window.
StepCost measure_cost(HybridModel& model, StatePool& pool, View<2> hidden, View<2> logits);

}  // namespace deltaring
