// Paged attention of the cpu backend in the shape of Qwen3.5-0.8B: Hq 8, Hkv 2, D 256, pages of 64 rows.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "backends/tables.h"

namespace deltaring {
namespace {

constexpr int64_t kHq = 8, kHkv = 2, kD = 256, kPageRows = 64;

// One row of `tokens` queries behind which `context` positions are stored.
class Row {
 public:
  Row(int64_t tokens, int64_t context, DType dtype)
      : pages_((context + kPageRows - 1) / kPageRows),
        q_(tokens * kHq * kD),
        out_(q_.size()),
        k_(pages_ * kHkv * kPageRows * kD * size_of(dtype)),
        v_(k_.size()),
        table_(pages_),
        start_{0, static_cast<int32_t>(tokens)},
        first_(context - tokens) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& x : q_) x = normal(random);
    for (int64_t i = 0; i < static_cast<int64_t>(k_.size() / size_of(dtype)); i++) {
      store_from_float(k_.data(), dtype, i, normal(random));
      store_from_float(v_.data(), dtype, i, normal(random));
    }
    std::iota(table_.begin(), table_.end(), 0);
    args = {.rows = {.count = 1, .start = start_, .seat = &seat_, .first = &first_},
            .q = dense<3>(q_.data(), DType::f32, {tokens, kHq, kD}),
            .gate = {},
            .kv = {.k = dense<4>(k_.data(), dtype, {pages_, kHkv, kPageRows, kD}),
                   .v = dense<4>(v_.data(), dtype, {pages_, kHkv, kPageRows, kD}),
                   .table = table_.data(),
                   .table_stride = pages_,
                   .seats = 1},
            .scale = 1 / std::sqrt(static_cast<float>(kD)),
            .out = dense<3>(out_.data(), DType::f32, {tokens, kHq, kD})};
  }
  Row(const Row&) = delete;

  AttentionArgs args;

 private:
  int64_t pages_;
  std::vector<float> q_, out_;
  std::vector<char> k_, v_;
  std::vector<int32_t> table_;
  int32_t start_[2], seat_ = 0;
  int64_t first_;
};

// range: tokens, context, dtype, threads
void attention(benchmark::State& state) {
  const int64_t tokens = state.range(0), context = state.range(1);
  const DType dtype = static_cast<DType>(state.range(2));
  const OpTable& ops = backend("cpu");
  const auto stream = ops.make_stream(static_cast<int>(state.range(3)));
  Row row(tokens, context, dtype);
  for (auto _ : state) ops.attention(row.args, *stream);

  using benchmark::Counter;
  const double bytes = 2.0 * context * kHkv * kD * size_of(dtype);
  const double seen = tokens * (context - (tokens - 1) / 2.0);  // positions, summed over the tokens
  state.counters["bytes"] = Counter(bytes, Counter::kIsIterationInvariantRate);
  state.counters["flop"] = Counter(4 * seen * kHq * kD, Counter::kIsIterationInvariantRate);
  state.SetLabel(name_of(dtype));
}
BENCHMARK(attention)
    ->ArgNames({"tokens", "context", "dtype", "threads"})
    ->ArgsProduct({{1, 4}, {512, 4096}, {0, 1, 2}, {1, 2}})
    ->ArgsProduct({{256}, {2048}, {0, 1, 2}, {1, 2}})
    ->UseRealTime();

}  // namespace
}  // namespace deltaring

BENCHMARK_MAIN();
