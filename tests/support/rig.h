// A model with its state and stepper, for tests that look below the engine.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/tables.h"
#include "draft/block_backbone.h"
#include "draft/mtp.h"
#include "model/random_weights.h"
#include "spec/step.h"

namespace deltaring::test {

inline std::filesystem::path source_dir() { return DELTARING_SOURCE_DIR; }

inline Weights load_folder(const std::filesystem::path& folder) {
  return load_weights(folder, load_model_config(folder));
}

// A few thousand parameters that still have every part: three GDN layers, one attention layer, an MTP head.
inline ModelConfig mini_config() {
  ModelConfig c;
  c.model_type = "qwen3_5_text";
  c.hidden_size = 32, c.intermediate_size = 48, c.vocab_size = 48, c.num_hidden_layers = 4;
  c.layer_types = {LayerKind::gdn, LayerKind::gdn, LayerKind::full_attention, LayerKind::gdn};
  c.num_attention_heads = 2, c.num_key_value_heads = 1, c.head_dim = 16, c.rotary_dim = 4, c.rope_theta = 10000;
  c.linear_num_key_heads = 1, c.linear_num_value_heads = 2, c.linear_key_head_dim = 16, c.linear_value_head_dim = 16;
  c.linear_conv_kernel_dim = 4, c.max_position_embeddings = 4096, c.tie_word_embeddings = false,
  c.mtp_num_hidden_layers = 1;
  return c;
}

inline Weights random_model(const ModelConfig& config, uint64_t seed, DType dtype = DType::f32) {
  return bind_weights(config, std::make_shared<RandomWeights>(config, dtype, seed));
}

struct RigOptions {
  std::string backend = "cpu";
  int threads = 1;
  int64_t seats = 1, T = 4, F = 8, R = 0, context = 512, prefill_chunk = 64;
  FoldPolicy policy = FoldPolicy::grid;
  StateRollback rollback = StateRollback::replay;
  DType checkpoint = DType::f32, kv = DType::f32;
  std::optional<BlockConfig> block;  // the pool has room for its KV
  const OpTable* ops = nullptr;      // instead of the backend's
};

// drafter: null for plain decoding; set before the first request.
class Rig {
 public:
  Rig(Weights weights, const RigOptions& o)
      : ops(o.ops ? *o.ops : backend(o.backend)),
        stream(ops.make_stream(o.threads)),
        model(std::move(weights), ops, *stream, std::max(o.prefill_chunk, o.seats * o.T)),
        pool(shape_of(model, o),
             {.seats = o.seats,
              .kv_tokens = o.seats * o.context,
              .page_rows = 16,
              .ring = {.T = o.T, .F = o.F, .R = o.R ? o.R : default_ring_rows(o.T, o.F, o.policy), .policy = o.policy},
              .rollback = o.rollback,
              .checkpoint = o.checkpoint,
              .kv = o.kv}),
        chunk_(o.prefill_chunk) {
    use(nullptr);
  }

  void use(Drafter* drafter, const VerifyOptions& verify = {}) {
    stepper.emplace(model, pool, drafter, chunk_, model.config().vocab_size, verify);
  }

  // A request behind its prefill.
  Sequence start(std::vector<int32_t> prompt, SamplingParams sampling = {}, uint64_t seed = 0) {
    Sequence s{.seat = pool.allocate(), .tokens = std::move(prompt), .sampling = sampling, .seed = seed};
    pool.reserve(s.seat, pool.options().kv_tokens / pool.options().seats);
    stepper->prefill(s);
    return s;
  }

  void step(Sequence& s) {
    Sequence* const row = &s;
    stepper->step({&row, 1});
  }

  const OpTable& ops;
  std::unique_ptr<Stream> stream;
  HybridModel model;
  StatePool pool;
  std::optional<SpecStepper> stepper;

 private:
  static StateShape shape_of(const HybridModel& model, const RigOptions& o) {
    StateShape shape = model.state_shape();
    if (o.block) add_draft_kv(shape, *o.block);
    return shape;
  }

  int64_t chunk_;
};

}  // namespace deltaring::test
