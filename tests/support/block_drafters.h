// Block drafters over small targets: those of tests/golden/drafters, and random ones of every kind.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "draft/block_drafter.h"
#include "model/loader_testing.h"
#include "model/safetensors.h"
#include "support/rig.h"

namespace deltaring::test {

// A source with some tensors of another's replaced.
class Overlay : public TensorSource {
 public:
  Overlay(std::shared_ptr<const TensorSource> base, std::shared_ptr<const TensorSource> top)
      : base_(std::move(base)), top_(std::move(top)) {}

  const TensorRef* find(std::string_view name) const override {
    std::string inner(name);
    if (inner.starts_with("model.")) inner.erase(0, 6);
    const TensorRef* found = top_->find(inner);
    return found ? found : base_->find(name);
  }
  std::vector<std::string> names() const override { return base_->names(); }

 private:
  std::shared_ptr<const TensorSource> base_, top_;
};

inline std::filesystem::path drafter_goldens() { return source_dir() / "tests/golden/drafters"; }

// The target that the golden drafters borrow embedding and head from; its layers are random.
inline ModelConfig golden_target_config() {
  ModelConfig c = mini_config();
  c.vocab_size = 96, c.num_hidden_layers = 6, c.mtp_num_hidden_layers = 0;
  c.layer_types = {LayerKind::gdn, LayerKind::gdn, LayerKind::full_attention, LayerKind::gdn, LayerKind::full_attention,
                   LayerKind::gdn};
  return c;
}

inline Weights golden_target() {
  const ModelConfig config = golden_target_config();
  return bind_weights(
      config, std::make_shared<Overlay>(
                  std::make_shared<RandomWeights>(config, DType::f32, 3),
                  std::make_shared<SafeTensors>(SafeTensors::open_file(drafter_goldens() / "target.safetensors"))));
}

inline BlockWeights golden_drafter(const std::string& name, const ModelConfig& target) {
  BlockConfig config = load_block_config(drafter_goldens() / name);
  fit_to_target(config, target);
  return load_block_weights(drafter_goldens() / name, config);
}

constexpr const char* kGoldenDrafters[] = {"dflash",
                                           "dflash-swa",
                                           "dflash-use-swa",
                                           "dflash-speculators",
                                           "dflash-deepspec",
                                           "dspark-vanilla",
                                           "dspark-gated-speculators",
                                           "dspark-rnn",
                                           "dflash2",
                                           "dflash2-speculators",
                                           "dspark-yarn"};

// The kinds that random_block makes.
constexpr const char* kRandomBlocks[] = {"dflash", "dflash2", "dspark-vanilla", "dspark-gated", "dspark-rnn"};

// A random drafter for any target, f32, with sliding and full layers.
inline BlockWeights random_block(const std::string& kind, const ModelConfig& target, int64_t window, uint32_t seed) {
  BlockConfig c;
  c.where = "random " + kind;
  c.hidden_size = target.hidden_size, c.intermediate_size = 24, c.vocab_size = target.vocab_size;
  c.num_attention_heads = 2, c.num_key_value_heads = 1, c.head_dim = 8, c.rope_theta = 10000;
  c.layers = {{.window = 20, .causal = true}, {}};
  c.first_row_predicts = kind.starts_with("dspark");
  c.block_size = c.first_row_predicts ? window - 1 : window;
  c.mask_token_id = target.vocab_size - 1;
  c.target_layer_ids = {-1, 0, target.num_hidden_layers - 2};
  if (kind == "dflash2") c.conv_kernel_size = 2, c.conv_group_size = 8, c.selector_rank = 4, c.selector_top_k = 6;
  if (c.first_row_predicts) c.markov_rank = 4, c.confidence_head = c.confidence_with_markov = true;
  if (kind == "dspark-gated") c.markov_head = MarkovHead::gated;
  if (kind == "dspark-rnn") c.markov_head = MarkovHead::rnn;

  struct Memory : testing::TensorMap {
    std::vector<std::vector<float>> data;
  };
  const auto source = std::make_shared<Memory>();
  std::mt19937 engine(seed);
  for (const TensorSpec& spec : expected_tensors(c)) {
    size_t size = 1;
    for (const int64_t extent : spec.shape) size *= static_cast<size_t>(extent);
    const bool is_norm = spec.name.ends_with("norm.weight");
    const float limit = is_norm ? 0.3f : std::sqrt(3.0f / static_cast<float>(spec.shape.back()));
    std::vector<float>& x = source->data.emplace_back(size);
    for (float& e : x) e = (is_norm ? 1.0f : 0.0f) + limit * (static_cast<float>(engine()) * 0x1p-31f - 1);
    source->tensors[spec.name] = {.dtype = DType::f32, .shape = spec.shape, .data = x.data(), .bytes = size * 4};
  }
  return bind_block_weights(c, source);
}

// A model with a block drafter and a stepper that uses it.
struct BlockRig {
  BlockRig(const std::string& name, RigOptions o)
      : BlockRig(golden_target(), golden_drafter(name, golden_target_config()), std::move(o)) {}
  BlockRig(Weights target, BlockWeights weights, RigOptions o) : rig(std::move(target), with_kv(o, weights.config)) {
    drafter = make_block_drafter(std::move(weights), rig.model, rig.pool, rig.model.config().vocab_size);
    rig.use(drafter.get());
  }
  static RigOptions with_kv(RigOptions o, const BlockConfig& config) {
    o.block = config;
    return o;
  }

  std::vector<int32_t> drafts(const Sequence& s, int32_t count) { return proposal(s, count).tokens; }
  Proposal proposal(const Sequence& s, int32_t count) {
    const DraftRequest request{
        .seat = s.seat, .drafts = count, .tokens = s.tokens, .sampling = s.sampling, .seed = s.seed};
    Proposal proposal;
    drafter->propose({&request, 1}, {&proposal, 1});
    return proposal;
  }

  Rig rig;
  std::unique_ptr<BlockDrafter> drafter;
};

}  // namespace deltaring::test
