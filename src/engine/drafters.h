// Which drafter the options ask for, and making it.
#pragma once
#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>

#include "deltaring/engine.h"
#include "draft/block_config.h"
#include "draft/block_weights.h"
#include "draft/drafter.h"
#include "model/hybrid.h"

namespace deltaring {

// Values of --speculative-algorithm that need no folder; the others are the names of block drafters.
constexpr std::string_view kAlgorithmsAlone[] = {"none", "ngram", "suffix", "eagle"};
inline bool needs_folder(std::string_view algorithm) {
  return std::ranges::find(kAlgorithmsAlone, algorithm) == std::end(kAlgorithmsAlone);
}

// The block drafter of --speculative-draft-model-path, fitted to the target; the options then name its algorithm and,
// where they left it open, its T. Nothing without the path. Throws Error(invalid_argument) naming the flag that
// contradicts the folder, Error(unsupported) for a drafter of another target.
std::optional<BlockConfig> resolve_drafter(EngineOptions& options, const ModelConfig& target);

// The drafter of resolved options; null for none. `block` are the weights of a block drafter, if it is one.
std::unique_ptr<Drafter> make_drafter(const EngineOptions& options, std::optional<BlockWeights> block,
                                      HybridModel& model, StatePool& pool, int64_t valid_ids);

}  // namespace deltaring
