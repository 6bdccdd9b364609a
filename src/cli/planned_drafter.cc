#include "cli/planned_drafter.h"

#include "base/error.h"
#include "engine/drafters.h"

namespace deltaring::cli {

std::optional<BlockWeights> add_planned_drafter(PlannedModel& model, EngineOptions& o, const CLI::Option& algorithm) {
  const bool has_mtp = model.config.mtp_num_hidden_layers > 0;
  std::optional<BlockWeights> drafter;
  if (const std::optional<BlockConfig> block = resolve_drafter(o, model.config)) {
    drafter = load_block_weights(o.speculative_draft_model_path, *block);
    add_drafter(model, *drafter);
  } else if (algorithm.count() == 0) {
    o.speculative_algorithm = has_mtp ? "eagle" : "ngram";
  }
  check_drafted(o);
  if (o.speculative_algorithm == "eagle" && !has_mtp) {
    fail(ErrorKind::unsupported, "--speculative-algorithm eagle: the model has no MTP head; ngram works");
  }
  return drafter;
}

}  // namespace deltaring::cli
