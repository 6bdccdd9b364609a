// gdn_verify, gdn_fold and the snapshot baseline of one layer, eight requests, one thread, against streaming the same
// bytes in the same run. Layers take turns, so that nothing is in a cache but by the op's own doing.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>

#include "backends/tables.h"
#include "roofline.h"
#include "state/pool.h"

namespace {

using namespace deltaring;
using bench::seconds;

constexpr int64_t kSeats = 8, K = 128, V = 128, Hk = 16, kLayers = 12, F = 8;

struct Case {
  int64_t Hv, T, records;
  DType checkpoint;
};

// Pools for some layers and a window's inputs, with every cursor at the same place.
class Layers {
 public:
  Layers(const Case& c, StateRollback rollback)
      : case_(c),
        pool_({.gdn_layers = kLayers, .Hk = Hk, .Hv = c.Hv, .K = K, .V = V, .conv_channels = 1, .taps = 1},
              {.seats = kSeats,
               .kv_tokens = 1,
               .ring = {.T = c.T, .F = F, .R = default_ring_rows(c.T, F, FoldPolicy::grid)},
               .rollback = rollback,
               .checkpoint = c.checkpoint,
               .record = DType::bf16}),
        inputs_(c.T * kSeats * (2 * Hk * K + c.Hv * (2 * V + 2))) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (float& x : inputs_) x = normal(rng);
    float* at = inputs_.data();
    const int64_t tokens = c.T * kSeats;
    const auto take = [&at](int64_t count) { return at += count, at - count; };
    q_ = dense<3>(take(tokens * Hk * K), DType::f32, {tokens, Hk, K});
    k_ = dense<3>(take(tokens * Hk * K), DType::f32, {tokens, Hk, K});
    v_ = dense<3>(take(tokens * c.Hv * V), DType::f32, {tokens, c.Hv, V});
    out_ = dense<3>(take(tokens * c.Hv * V), DType::f32, {tokens, c.Hv, V});
    g_ = dense<3>(take(tokens * c.Hv), DType::f32, {tokens, c.Hv, 1});
    beta_ = dense<2>(take(tokens * c.Hv), DType::f32, {tokens, c.Hv});
    for (int64_t i = 0; i < tokens * c.Hv; i++) g_.f32()[i] = -std::abs(g_.f32()[i]) * 0.1f, beta_.f32()[i] = 0.5f;
    for (int32_t b = 0; b < kSeats; b++) {
      seat_[b] = pool_.allocate(), first_[b] = c.records, start_[b + 1] = static_cast<int32_t>((b + 1) * c.T);
      fold_to_[b] = c.records / F * F, kept_[b] = static_cast<int32_t>(c.T / 2);
    }
    fill();
  }

  void verify(int64_t layer) {
    ops_.gdn_verify({.rows = rows(),
                     .q = q_,
                     .k = k_,
                     .v = v_,
                     .g = g_,
                     .beta = beta_,
                     .state = pool_.gdn(layer),
                     .grain = F,
                     .out = out_},
                    *stream_);
  }
  void fold(int64_t layer) { ops_.gdn_fold({.rows = rows(), .state = pool_.gdn(layer), .grain = F}, *stream_); }
  void snapshot(int64_t layer) {
    const View<4> state = pool_.gdn(layer).checkpoint;
    const View<5> snapshots = pool_.snapshots(layer);
    ops_.snapshot_verify({.rows = rows(),
                          .q = q_,
                          .k = k_,
                          .v = v_,
                          .g = g_,
                          .beta = beta_,
                          .state = state,
                          .snapshots = snapshots,
                          .out = out_},
                         *stream_);
    ops_.snapshot_commit({.rows = rows(), .kept = kept_, .state = state, .snapshots = snapshots}, *stream_);
  }

  // Bytes of the checkpoints of one layer, and of its live records.
  int64_t checkpoint_bytes() const {
    return kSeats * case_.Hv * V * K * static_cast<int64_t>(size_of(case_.checkpoint));
  }
  int64_t record_bytes() const { return kSeats * case_.records * ((Hk * K + case_.Hv * V) * 2 + case_.Hv * 8); }
  // Reads `bytes` that no op has touched lately.
  void read(int64_t layer, int64_t bytes) {
    const auto* data = static_cast<const std::byte*>(pool_.gdn(layer).checkpoint.data);
    sink_ = bench::read_all(reader_, data, bytes >> 16 << 16);
  }
  // Reads and writes the checkpoints of one layer in place.
  void read_and_write(int64_t layer) {
    auto* words = static_cast<uint64_t*>(pool_.gdn(layer).checkpoint.data);
    for (int64_t i = 0; i < checkpoint_bytes() / 8; i++) words[i] ^= sink_ & 1;
  }

 private:
  void fill() {
    for (int64_t layer = 0; layer < kLayers; layer++) {
      const GdnState s = pool_.gdn(layer);
      const auto random = [&](const auto& view, int64_t elements, float scale) {
        for (int64_t i = 0; i < elements; i++) store_from_float(view.data, view.dtype, i, scale * inputs_[i % 4096]);
      };
      random(s.checkpoint, s.checkpoint.shape[0] * s.checkpoint.stride[0], 0.1f);
      random(s.record_k, s.record_k.shape[0] * s.record_k.stride[0], 1);
      random(s.record_v, s.record_v.shape[0] * s.record_v.stride[0], 1);
      random(s.record_beta, s.record_beta.shape[0] * s.record_beta.stride[0], 0.3f);
    }
  }
  Rows rows() const {
    return {.count = kSeats, .start = start_, .seat = seat_, .first = first_, .folded = folded_, .fold_to = fold_to_};
  }

  Case case_;
  StatePool pool_;
  std::vector<float> inputs_;
  View<3> q_, k_, v_, g_, out_;
  View<2> beta_;
  int32_t start_[kSeats + 1] = {}, seat_[kSeats], kept_[kSeats];
  int64_t first_[kSeats], folded_[kSeats] = {}, fold_to_[kSeats];
  const OpTable& ops_ = backend("cpu");
  std::unique_ptr<Stream> stream_ = ops_.make_stream(1);
  ThreadPool reader_{1};
  volatile uint64_t sink_ = 0;
};

Case case_of(const benchmark::State& state) {
  return {.Hv = state.range(0),
          .T = state.range(1),
          .records = state.range(2),
          .checkpoint = state.range(3) == 32 ? DType::f32 : DType::bf16};
}

// Medians over rounds of `op` and of its floor, taken in turn on layers that are out of every cache.
template <class Op, class Floor>
void compare(benchmark::State& state, const Op& op, const Floor& floor, double bytes) {
  constexpr int kRounds = 24;
  std::vector<double> times, floors;
  for (auto _ : state) {
    for (int i = 0; i < kRounds; i++) {
      times.push_back(seconds([&] { op(i % kLayers); }));
      floors.push_back(seconds([&] { floor((i + kLayers / 2) % kLayers); }));
    }
    state.SetIterationTime(bench::median(times));
  }
  state.counters["GB/s"] = bytes / bench::median(times) / 1e9;
  state.counters["limit_GB/s"] = bytes / bench::median(floors) / 1e9;
  state.counters["times_the_stream"] = bench::median(times) / bench::median(floors);
}

void verify(benchmark::State& state) {
  Layers layers(case_of(state), StateRollback::replay);
  const int64_t bytes = layers.checkpoint_bytes() + layers.record_bytes();
  compare(
      state, [&](int64_t layer) { layers.verify(layer); }, [&](int64_t layer) { layers.read(layer, bytes); },
      static_cast<double>(bytes));
}

void fold(benchmark::State& state) {
  Layers layers(case_of(state), StateRollback::replay);
  compare(
      state, [&](int64_t layer) { layers.fold(layer); }, [&](int64_t layer) { layers.read_and_write(layer); },
      static_cast<double>(2 * layers.checkpoint_bytes()));
}

// The ordinary rollback on the same window; its stream is the replay verify's, what replay moves instead.
void snapshot(benchmark::State& state) {
  Layers layers(case_of(state), StateRollback::snapshot);
  const int64_t bytes = layers.checkpoint_bytes();
  compare(
      state, [&](int64_t layer) { layers.snapshot(layer); }, [&](int64_t layer) { layers.read(layer, bytes); },
      static_cast<double>(bytes));
}

#define DELTARING_SHAPES(bench, T, records)             \
  BENCHMARK(bench)                                      \
      ->ArgNames({"Hv", "T", "records", "bits"})        \
      ->ArgsProduct({{16, 48}, {T}, records, {32, 16}}) \
      ->Iterations(1)                                   \
      ->UseManualTime()                                 \
      ->Unit(benchmark::kMicrosecond)
DELTARING_SHAPES(verify, 8, (std::vector<int64_t>{0, 4, 7, 11}));
DELTARING_SHAPES(verify, 1, (std::vector<int64_t>{4}));
DELTARING_SHAPES(fold, 8, (std::vector<int64_t>{8}));
DELTARING_SHAPES(snapshot, 8, (std::vector<int64_t>{0}));

}  // namespace

BENCHMARK_MAIN();
