#include "engine/drafters.h"

#include <fmt/format.h>

#include "base/error.h"
#include "draft/block_drafter.h"
#include "draft/mtp.h"
#include "draft/ngram.h"
#include "draft/suffix.h"

namespace deltaring {

std::optional<BlockConfig> resolve_drafter(EngineOptions& o, const ModelConfig& target) {
  std::string& algorithm = o.speculative_algorithm;
  const std::string& folder = o.speculative_draft_model_path;
  if (folder.empty()) {
    check(
        !needs_folder(algorithm),
        "--speculative-algorithm {}: {} work, and with a drafter's folder, --speculative-draft-model-path DIR, dflash, "
        "dflash2 and dspark; eagle is a model's own MTP head",
        algorithm, fmt::join(kAlgorithmsAlone, ", "));
    return {};
  }
  BlockConfig config = load_block_config(folder);
  fit_to_target(config, target);
  const std::string kind = name_of(config.kind());
  check(algorithm == "none" || algorithm == kind,
        "--speculative-algorithm {}: the drafter in {} is {}; {} works, or leave the flag out", algorithm, folder, kind,
        kind);
  algorithm = kind;
  int64_t& T = o.speculative_num_draft_tokens;
  if (T == 0) T = config.window();
  check(T <= config.window(), "--speculative-num-draft-tokens {}: the drafter in {} drafts {} tokens; up to {} work", T,
        folder, config.drafts(), config.window());
  return config;
}

std::unique_ptr<Drafter> make_drafter(const EngineOptions& o, std::optional<BlockWeights> block, HybridModel& model,
                                      StatePool& pool, int64_t valid_ids) {
  if (block) return make_block_drafter(std::move(*block), model, pool, valid_ids);
  if (o.speculative_algorithm == "none") return nullptr;
  if (o.speculative_algorithm == "ngram") return std::make_unique<NgramDrafter>();
  if (o.speculative_algorithm == "suffix") return std::make_unique<SuffixDrafter>();
  return std::make_unique<MtpDrafter>(model, pool, valid_ids);
}

}  // namespace deltaring
