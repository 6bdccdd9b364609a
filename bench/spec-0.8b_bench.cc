// What drafting costs beside verifying, and what both bring: every drafter on a random-weight target of Qwen3.5-0.8B's
// shape in bf16, every step made to emit three tokens. Block drafters have the published shape, five layers, scaled to
// the target. Plain steps are timed in turn with the others, so that a busy machine slows both.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include "backends/tables.h"
#include "draft/block_drafter.h"
#include "draft/mtp.h"
#include "draft/ngram.h"
#include "model/random_weights.h"
#include "roofline.h"
#include "shape_0_8b.h"
#include "spec/step.h"

namespace {

using namespace deltaring;

constexpr int64_t kChunk = 256, kPrompt = 64, kSteps = 25;
constexpr double kAcceptance = 3;

ModelConfig target_config() {
  ModelConfig c = bench::config_0_8b();
  c.mtp_num_hidden_layers = 1;
  return c;
}

// Qwen3.8-27B-DFlash2 and what DFlash and DSpark for that target have in its place, with the target's hidden size, MLP
// width and query dims: 32 heads beside 5120 become 8 beside 1024.
BlockConfig block_config(BlockKind kind, const ModelConfig& target) {
  BlockConfig c;
  c.where = name_of(kind);
  c.hidden_size = target.hidden_size, c.intermediate_size = target.intermediate_size;
  c.vocab_size = target.vocab_size;
  c.num_attention_heads = 8, c.num_key_value_heads = 2, c.head_dim = 128, c.rope_theta = 1e7;
  c.layers.resize(5, kind == BlockKind::dflash2 ? BlockAttention{.window = 2048} : BlockAttention{});
  c.target_layer_ids = {2, 7, 12, 17, 22};
  c.mask_token_id = 248070;
  c.first_row_predicts = kind == BlockKind::dspark;
  c.block_size = c.first_row_predicts ? 7 : 8;
  if (kind == BlockKind::dflash2) {
    c.conv_kernel_size = 2, c.conv_group_size = 16, c.selector_rank = 256, c.selector_top_k = 16;
  }
  if (kind == BlockKind::dspark) c.markov_rank = 256, c.confidence_head = c.confidence_with_markov = true;
  return c;
}

// Notes what a drafter takes.
class Timed final : public Drafter {
 public:
  explicit Timed(Drafter& drafter) : drafter_(drafter) {}
  double taken() { return std::exchange(seconds_, 0); }  // since it was last asked

  const char* name() const override { return drafter_.name(); }
  bool has_confidence() const override { return drafter_.has_confidence(); }
  bool draws() const override { return drafter_.draws(); }
  std::span<const int64_t> taps() const override { return drafter_.taps(); }
  void reset(int32_t seat) override { drafter_.reset(seat); }
  void extend(const DraftContext& context) override {
    seconds_ += bench::seconds([&] { drafter_.extend(context); });
  }
  void propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) override {
    seconds_ += bench::seconds([&] { drafter_.propose(requests, proposals); });
  }

 private:
  Drafter& drafter_;
  double seconds_ = 0;
};

struct World {
  explicit World(const std::string& name, int64_t T)
      : ops(backend("cpu")), stream(ops.make_stream(0)), model(weights(), ops, *stream, kChunk) {
    StateShape shape = model.state_shape();
    std::optional<BlockWeights> block;
    for (const BlockKind kind : kBlockKinds) {
      if (name != name_of(kind)) continue;
      const BlockConfig config = block_config(kind, model.config());
      block = bind_block_weights(config, std::make_shared<RandomWeights>(expected_tensors(config), DType::bf16, 2));
      add_draft_kv(shape, config);
    }
    pool.emplace(shape, StateOptions{.seats = 2,
                                     .kv_tokens = 2 * (kPrompt + (kSteps + 2) * (T + 1) + 64),
                                     .ring = {.T = T, .F = 8, .R = default_ring_rows(T, 8, FoldPolicy::grid)}});
    const int64_t vocab = model.config().vocab_size;
    if (name == "ngram") drafter = std::make_unique<NgramDrafter>();
    if (name == "eagle") drafter = std::make_unique<MtpDrafter>(model, *pool, vocab);
    if (block) drafter = make_block_drafter(std::move(*block), model, *pool, vocab);
    timed.emplace(*drafter);
    with.emplace(model, *pool, &*timed, kChunk, vocab, VerifyOptions{.simulate_acceptance_length = kAcceptance});
    without.emplace(model, *pool, nullptr, kChunk, vocab);
  }

  static Weights weights() {
    static const auto source = std::make_shared<RandomWeights>(target_config(), DType::bf16, 1);
    return bind_weights(target_config(), source);
  }

  Sequence start(SpecStepper& stepper) {
    Sequence s{.seat = pool->allocate()};
    for (int64_t i = 0; i < kPrompt; i++) s.tokens.push_back(static_cast<int32_t>(i * 7919 % 248000));
    pool->reserve(s.seat, pool->options().kv_tokens / 2);
    stepper.prefill(s);
    return s;
  }

  const OpTable& ops;
  std::unique_ptr<Stream> stream;
  HybridModel model;
  std::optional<StatePool> pool;
  std::unique_ptr<Drafter> drafter;
  std::optional<Timed> timed;
  std::optional<SpecStepper> with, without;
};

void draft_step(benchmark::State& state, const std::string& name, int64_t T) {
  std::vector<double> drafting, verifying, plain, gain, share;
  for (auto _ : state) {
    World world(name, T);
    Sequence on = world.start(*world.with), off = world.start(*world.without);
    Sequence *const on_row = &on, *const off_row = &off;
    world.timed->taken();
    world.with->reset_stats();
    double emitted = 0;
    for (int64_t i = 0; i < kSteps; i++) {
      on.max_drafts = static_cast<int32_t>(T - 1);
      const double step = bench::seconds([&] { world.with->step({&on_row, 1}); }), draft = world.timed->taken();
      const double one = bench::seconds([&] { world.without->step({&off_row, 1}); });
      emitted += on.emitted;
      if (i == 0) continue;  // memory is touched for the first time
      drafting.push_back(draft), verifying.push_back(step - draft), plain.push_back(one);
      share.push_back(draft / (step - draft)), gain.push_back(kAcceptance * one / step);
    }
    state.counters["acceptance_length"] = emitted / static_cast<double>(kSteps);
  }
  state.counters["draft_ms"] = 1e3 * bench::median(drafting);
  state.counters["verify_ms"] = 1e3 * bench::median(verifying);
  state.counters["plain_ms"] = 1e3 * bench::median(plain);
  state.counters["draft_over_verify"] = bench::median(share);
  state.counters["times_none"] = bench::median(gain);
}

}  // namespace

int main(int argc, char** argv) {
  for (const char* name : {"ngram", "eagle", "dflash", "dflash2", "dspark"}) {
    for (const int64_t T : {4, 8}) {
      benchmark::RegisterBenchmark(fmt::format("{}/T:{}", name, T).c_str(),
                                   [=](benchmark::State& state) { draft_step(state, name, T); })
          ->Iterations(1)
          ->Unit(benchmark::kSecond)
          ->UseRealTime();
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
