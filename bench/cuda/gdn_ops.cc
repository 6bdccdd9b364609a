// gdn_ops: microseconds of a layer's gdn_verify on a GPU, in graph replay over more memory than the cache holds, with
// the bytes it moves and its share of a plain read in the same run. One JSON object a line.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "backends/tables.h"
#include "base/error.h"
#include "cuda/layer.h"

namespace deltaring::bench {
namespace {

constexpr double kMoreThanCache = 3e8;  // bytes of one round over all sets

void ok(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail(ErrorKind::unsupported, "{}: {}", call, cudaGetErrorString(status));
}

// Median microseconds of a launch, of nine replays of a graph of `count` of them.
double graph_us(int count, const std::function<void(int, cudaStream_t)>& launch) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  cudaEvent_t begin, end;
  ok(cudaStreamCreate(&stream), "cudaStreamCreate");
  ok(cudaEventCreate(&begin), "cudaEventCreate"), ok(cudaEventCreate(&end), "cudaEventCreate");
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int i = 0; i < count; i++) launch(i, stream);
  ok(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  ok(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
  std::vector<float> times;
  for (int round = 0; round < 9; round++) {
    ok(cudaEventRecord(begin, stream), "cudaEventRecord");
    ok(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
    ok(cudaEventRecord(end, stream), "cudaEventRecord");
    ok(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    ok(cudaEventElapsedTime(&times.emplace_back(), begin, end), "cudaEventElapsedTime");
  }
  std::nth_element(times.begin(), times.begin() + 4, times.end());
  cudaGraphExecDestroy(replay), cudaGraphDestroy(graph), cudaEventDestroy(begin), cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return times[4] * 1e3 / count;
}

// Terabytes a second of a plain read.
double read_rate(const OpTable& table) {
  const size_t bytes = size_t{1} << 31;
  const DeviceArray memory(*table.memory, bytes), sink(*table.memory, 256);
  fill_uniform(memory.get(), static_cast<int64_t>(bytes / 4), DType::f32, 1, 0, 1);
  const double us = graph_us(
      4, [&](int, cudaStream_t stream) { stream_read(memory.get(), bytes, static_cast<float*>(sink.get()), stream); });
  return static_cast<double>(bytes) / us * 1e-6;
}

std::vector<Layer> sets_of(const OpTable& table, const LayerCase& c) {
  const double bytes = static_cast<double>(c.B * c.row_bytes());
  std::vector<Layer> sets;
  for (int i = 0; i < std::clamp(static_cast<int>(kMoreThanCache / bytes) + 1, 2, 128); i++)
    sets.emplace_back(table, c, 1000 * i);
  return sets;
}

nlohmann::json measure(const OpTable& table, const LayerCase& c, double rate) {
  std::vector<Layer> sets = sets_of(table, c);
  std::vector<GdnVerifyArgs> args;
  for (Layer& layer : sets) args.push_back(layer.verify(layer.upload(layer.rows())));
  const int count = static_cast<int>(std::max<size_t>(args.size(), 40));
  const double us = graph_us(
      count, [&](int i, cudaStream_t stream) { table.gdn_verify(args[i % args.size()], *table.wrap_stream(stream)); });
  const double bytes = static_cast<double>(c.B * c.row_bytes());
  return {{"case", "verify"},
          {"state", name_of(c.state)},
          {"T", c.T},
          {"n", c.n},
          {"fold", c.fold},
          {"exact", c.exact},
          {"B", c.B},
          {"us", us},
          {"bytes", bytes},
          {"TB/s", bytes / us * 1e-6},
          {"share", bytes / us * 1e-6 / rate}};
}

// A run of steps whose rows move by random acceptance, so that records and due folds are mixed as in service.
nlohmann::json amortise(const OpTable& table, LayerCase c, double accepted, double rate) {
  constexpr int kSteps = 64;
  c.n = c.F - 1 + c.T, c.fold = true;  // for the sizes of the sets
  std::vector<Layer> sets = sets_of(table, c);
  std::mt19937_64 random(7);
  StepRows rows = sets[0].rows();
  rows.first = rows.fold_to = rows.folded;
  std::vector<GdnVerifyArgs> steps;
  double bytes = 0;
  for (int step = 0; step < kSteps; step++) {
    for (int64_t b = 0; b < c.B; b++) {
      rows.fold_to[b] = plan_fold({.folded = rows.folded[b], .pos = rows.first[b]}, c.F, FoldPolicy::grid);
      LayerCase row = c;
      row.n = rows.first[b] - rows.folded[b], row.fold = rows.fold_to[b] > rows.folded[b];
      bytes += static_cast<double>(row.row_bytes());
    }
    Layer& layer = sets[step % sets.size()];
    steps.push_back(layer.verify(layer.upload(rows)));
    // Each draft is accepted with the probability that gives the mean.
    std::geometric_distribution<int> drafts(1 / accepted);
    for (int64_t b = 0; b < c.B; b++) {
      rows.folded[b] = rows.fold_to[b];
      rows.first[b] += std::min<int64_t>(1 + drafts(random), c.T);
    }
  }
  const double us =
      graph_us(kSteps, [&](int i, cudaStream_t stream) { table.gdn_verify(steps[i], *table.wrap_stream(stream)); });
  bytes /= kSteps;
  return {{"case", "step"},
          {"state", name_of(c.state)},
          {"T", c.T},
          {"exact", c.exact},
          {"B", c.B},
          {"F", c.F},
          {"accepted", accepted},
          {"us", us},
          {"bytes", bytes},
          {"share", bytes / us * 1e-6 / rate}};
}

void run(bool quick) {
  const OpTable& table = backend("cuda");
  const double rate = read_rate(table);
  std::cout << nlohmann::json{{"case", "read"}, {"TB/s", rate}} << std::endl;
  const std::vector<int64_t> batches =
      quick ? std::vector<int64_t>{1, 8, 128} : std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  for (const DType state : {DType::bf16, DType::f32}) {
    for (const int64_t T : {1, 2, 4, 8, 12, 16}) {
      if (quick && T != 8) continue;
      for (const int64_t n : {0, 4, 8, 16}) {
        for (const int64_t B : batches) {
          const LayerCase c{.B = B, .T = T, .n = n, .fold = n >= 16, .state = state, .R = T > 8 ? 64 : 32};
          std::cout << measure(table, c, rate) << std::endl;
        }
      }
    }
    for (const bool exact : {false, true}) {
      for (const int64_t T : {1, 8})
        std::cout << amortise(table, {.B = 128, .T = T, .n = 0, .exact = exact, .state = state}, T == 1 ? 1 : 3.6, rate)
                  << std::endl;
    }
  }
}

}  // namespace
}  // namespace deltaring::bench

int main(int argc, char** argv) {
  CLI::App app("Times gdn_verify of a Qwen3.8-27B layer on the current GPU; one JSON object a line.");
  bool quick = false;
  app.add_flag("--quick", quick, "T = 8 and three batches only");
  CLI11_PARSE(app, argc, argv);
  try {
    deltaring::bench::run(quick);
  } catch (const std::exception& error) {
    std::cerr << "gdn_ops: " << error.what() << "\n";
    return 1;
  }
}
