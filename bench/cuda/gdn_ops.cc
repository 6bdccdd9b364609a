// gdn_ops: microseconds of the replay and snapshot ops of a Qwen3.8-27B layer on the current GPU, in graph replay over
// more memory than the cache holds, with the bytes they move and their share of plain reads and writes in the same run.
// One JSON object a line.
#include <cuda_runtime_api.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <utility>

#include "backends/tables.h"
#include "cuda/run.h"

namespace deltaring::bench {
namespace {

const std::pair<const char*, void (*)(const Run&)> kOps[] = {
    {"verify", run_verify},   {"fold", run_fold},          {"commit", run_commit}, {"conv", run_conv},
    {"prefill", run_prefill}, {"snapshot", run_snapshots}, {"step", run_steps},
};

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const auto& [name, op] : kOps) names.emplace_back(name);
  return names;
}

void print_device(const MemoryRates& rates) {
  cudaDeviceProp device{};
  int current = 0;
  ok(cudaGetDevice(&current), "cudaGetDevice"),
      ok(cudaGetDeviceProperties(&device, current), "cudaGetDeviceProperties");
  std::cout << nlohmann::ordered_json{{"op", "probe"},
                                      {"device", device.name},
                                      {"read_TB/s", rates.read},
                                      {"read_write_TB/s", rates.read_write}}
            << std::endl;
}

void run(const Selection& selection) {
  const OpTable& table = backend("cuda");
  const Run run{table, selection, memory_rates(table)};
  print_device(run.rates);
  for (const auto& [name, op] : kOps)
    if (std::count(selection.ops.begin(), selection.ops.end(), name)) op(run);
}

}  // namespace
}  // namespace deltaring::bench

int main(int argc, char** argv) {
  using namespace deltaring;
  using Numbers = std::vector<int64_t>;
  CLI::App app("Times the ops of a Qwen3.8-27B layer on the current GPU; one JSON object a line.");
  bench::Selection selection{.ops = bench::op_names(),
                             .batches = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512},
                             .windows = {1, 2, 4, 8, 12, 16},
                             .step_batches = {},
                             .step_windows = {},
                             .states = {},
                             .acceptance = DELTARING_SOURCE_DIR "/bench/acceptance/tiny-py.json"};
  std::vector<std::string> states = {"bfloat16", "float32", "float16"};
  app.add_option("--op", selection.ops, fmt::format("ops, of {}", fmt::join(bench::op_names(), ", ")))
      ->delimiter(',')
      ->check(CLI::IsMember(bench::op_names()));
  const CLI::Option* batches = app.add_option("--batches", selection.batches, "rows, each in [1, 4096]")
                                   ->delimiter(',')
                                   ->check(CLI::Range(1, 4096));
  const CLI::Option* windows = app.add_option("--windows", selection.windows, "tokens a row, each in [1, 16]")
                                   ->delimiter(',')
                                   ->check(CLI::Range(1, 16));
  const CLI::Option* state = app.add_option("--state", states, "dtypes of checkpoints, of bfloat16, float32, float16")
                                 ->delimiter(',')
                                 ->check(CLI::IsMember(std::vector<std::string>(states)));
  app.add_option("--acceptance", selection.acceptance, "recorded sequences for --op step");
  app.add_flag("--quick", selection.quick, "few cases: B = 1, 8, 128, T = 8, bfloat16 and float32");
  CLI11_PARSE(app, argc, argv);
  const bool quick = selection.quick;
  if (quick && !*batches) selection.batches = {1, 8, 128};
  if (quick && !*windows) selection.windows = {8};
  if (quick && !*state) states = {"bfloat16", "float32"};
  selection.step_batches = *batches ? selection.batches : quick ? Numbers{128} : Numbers{1, 32, 128, 256};
  selection.step_windows = *windows ? selection.windows : quick ? Numbers{8} : Numbers{1, 4, 8};
  for (const std::string& name : states) selection.states.push_back(*dtype_named(name));
  try {
    bench::run(selection);
  } catch (const std::exception& error) {
    std::cerr << "gdn_ops: " << error.what() << "\n";
    return 1;
  }
}
