// What drafts in a plan, for the commands that load no engine.
#pragma once
#include <optional>

#include "cli/commands.h"
#include "draft/block_weights.h"
#include "engine/memory_plan.h"

namespace deltaring::cli {

// Adds the block drafter of the options to the model and returns its weights; without one, and where `algorithm` was
// not given, the options name the MTP head, or ngram where there is none. Throws Error(unsupported) for a head that was
// asked for and is not there, and as resolve_drafter and check_drafted.
std::optional<BlockWeights> add_planned_drafter(PlannedModel& model, EngineOptions& options,
                                                const CLI::Option& algorithm);

}  // namespace deltaring::cli
