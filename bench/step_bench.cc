// The decode step of a random-weight model of Qwen3.5-0.8B's shape in bf16: bytes and operations over the floor that
// the same run measures on this machine (bench/roofline.h).
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>

#include "backends/tables.h"
#include "model/random_weights.h"
#include "roofline.h"
#include "shape_0_8b.h"
#include "spec/step.h"

namespace {

using namespace deltaring;
using bench::config_0_8b;
using bench::seconds;

// Drafts that are never right: every step verifies T rows and keeps one, so that steps of one kind can be repeated.
class WrongDrafter final : public Drafter {
 public:
  const char* name() const override { return "wrong"; }
  void propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) override {
    for (size_t b = 0; b < requests.size(); b++) proposals[b].tokens.assign(requests[b].drafts, 0);
  }
};

class Model {
 public:
  Model()
      : ops_(backend("cpu")),
        stream_(ops_.make_stream(0)),
        model_(bind_weights(config_0_8b(), std::make_shared<RandomWeights>(config_0_8b(), DType::bf16, 1)), ops_,
               *stream_, kChunk) {}

  static constexpr int64_t kChunk = 512, kMaxT = 16;

  // Seconds of one verify step of T tokens behind a context of `context` tokens, of a T=1 step, and of reading as many
  // bytes as the step must: medians of `rounds`, the three taken in turn so that a busy machine slows them alike.
  struct Step {
    double seconds, plain, read;
  };
  Step step(int64_t T, int64_t context, int rounds) {
    StatePool pool(model_.state_shape(), pool_options(context + rounds * 2 + kMaxT));
    WrongDrafter drafter;
    SpecStepper stepper(model_, pool, &drafter, kChunk, config_0_8b().vocab_size);
    Sequence s = prompt(pool, context);
    stepper.prefill(s);
    std::vector<double> times, plain, read;
    Sequence* const row = &s;
    const int64_t bytes = static_cast<int64_t>(step_bytes(context)) >> 16 << 16;
    const std::byte* weights = static_cast<const std::byte*>(model_.weights().embed_tokens.data);
    for (int i = 0; i < rounds; i++) {
      s.max_drafts = static_cast<int32_t>(T - 1);
      times.push_back(seconds([&] { stepper.step({&row, 1}); }));
      s.max_drafts = 0;
      plain.push_back(seconds([&] { stepper.step({&row, 1}); }));
      volatile uint64_t sink = 0;
      read.push_back(seconds([&] { sink = bench::read_all(readers_, weights, std::min(bytes, readable_)); }) *
                     static_cast<double>(bytes) / static_cast<double>(std::min(bytes, readable_)));
    }
    return {bench::median(times), bench::median(plain), bench::median(read)};
  }

  double prefill_seconds(int64_t tokens) {
    StatePool pool(model_.state_shape(), pool_options(tokens + kMaxT));
    SpecStepper stepper(model_, pool, nullptr, kChunk, config_0_8b().vocab_size);
    Sequence s = prompt(pool, tokens);
    return seconds([&] { stepper.prefill(s); });
  }

  // Bytes a step of one row must move: every matrix once, the checkpoint, records and KV it reads.
  double step_bytes(int64_t context) const {
    const StatePlan plan = plan_state(model_.state_shape(), pool_options(context));
    return static_cast<double>(matrix_elements() * 2 + plan.checkpoint_per_seat + plan.records_per_seat +
                               context * plan.kv_per_page / 64);
  }

  // Multiply-adds count two; the recurrence and attention add what the shapes say.
  double prefill_flops(int64_t tokens) const {
    const ModelConfig c = config_0_8b();
    const double head = static_cast<double>(c.vocab_size * c.hidden_size);
    const double gdn = 18.0 * 16 * 128 * 128 * 8, attention = 6.0 * 8 * 256 * 2 * static_cast<double>(tokens);
    return 2 * (static_cast<double>(matrix_elements()) - head) * static_cast<double>(tokens) + 2 * head +
           (gdn + attention) * static_cast<double>(tokens);
  }

 private:
  static StateOptions pool_options(int64_t tokens) {
    return {.seats = 1,
            .kv_tokens = tokens,
            .ring = {.T = kMaxT, .F = 8, .R = default_ring_rows(kMaxT, 8, FoldPolicy::grid)}};
  }

  static Sequence prompt(StatePool& pool, int64_t tokens) {
    Sequence s{.seat = pool.allocate()};
    for (int64_t i = 0; i < tokens; i++) s.tokens.push_back(static_cast<int32_t>(i * 7919 % 248000));
    pool.reserve(s.seat, pool.options().kv_tokens);
    return s;
  }

  static int64_t matrix_elements() {
    int64_t sum = 0;
    for (const TensorSpec& spec : expected_tensors(config_0_8b())) {
      if (spec.is_matrix) sum += spec.shape[0] * spec.shape[1];
    }
    return sum;
  }

  // Bytes of the embedding, one piece of memory far larger than the caches.
  static constexpr int64_t readable_ = int64_t{248320} * 1024 * 2 >> 16 << 16;

  const OpTable& ops_;
  std::unique_ptr<Stream> stream_;
  ThreadPool readers_{0};
  HybridModel model_;
};

Model& model() {
  static Model instance;
  return instance;
}

void decode(benchmark::State& state) {
  const int64_t T = state.range(0), context = state.range(1);
  Model::Step step{};
  for (auto _ : state) {
    step = model().step(T, context, 15);
    state.SetIterationTime(step.seconds);
  }
  const double bytes = model().step_bytes(context);
  state.counters["GB"] = bytes / 1e9;
  state.counters["GB/s"] = bytes / step.seconds / 1e9;
  state.counters["read_limit_GB/s"] = bytes / step.read / 1e9;
  state.counters["share_of_read_limit"] = step.read / step.seconds;
  state.counters["times_a_T=1_step"] = step.seconds / step.plain;
}

// The machine's best GEMM rate, measured beside each prefill: oneDNN in bf16 where it has a kernel, else in f32.
void prefill(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  std::vector<double> times, limits;
  for (auto _ : state) {
    for (int i = 0; i < 3; i++) {
      times.push_back(model().prefill_seconds(tokens));
#ifdef DELTARING_ONEDNN
      limits.push_back(std::max(bench::onednn_sgemm_rate(512, 1024, 3584), bench::onednn_bf16_rate(512, 1024, 3584)));
#endif
    }
    state.SetIterationTime(bench::median(times));
  }
  const double rate = model().prefill_flops(tokens) / bench::median(times);
  state.counters["tok/s"] = static_cast<double>(tokens) / bench::median(times);
  state.counters["GFLOP/s"] = rate / 1e9;
  if (limits.empty()) return;
  state.counters["gemm_limit_GFLOP/s"] = bench::median(limits) / 1e9;
  state.counters["share_of_gemm_limit"] = rate / bench::median(limits);
}

BENCHMARK(decode)
    ->ArgNames({"T", "context"})
    ->Args({1, 64})
    ->Args({2, 64})
    ->Args({4, 64})
    ->Args({8, 64})
    ->Args({16, 64})
    ->Args({1, 2048})
    ->Args({8, 2048})
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(prefill)->ArgName("tokens")->Arg(512)->Arg(1024)->Iterations(1)->UseManualTime()->Unit(
    benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
