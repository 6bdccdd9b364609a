// What a run of gdn_ops is asked, and how it measures and prints: one JSON object a line.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cuda/layer.h"
#include "cuda/timing.h"

namespace deltaring::bench {

struct Selection {
  std::vector<std::string> ops;
  std::vector<int64_t> batches, windows;  // B; T
  std::vector<int64_t> step_batches, step_windows;
  std::vector<DType> states;
  std::string acceptance;  // file of recorded sequences
  bool quick = false;      // few cases of everything that is not selected by a flag
};

// One layer as many times as it takes to be larger than the cache.
using Layers = std::vector<Layer>;

// What one launch of a captured graph runs; owned by the graph's maker.
using Launch = std::function<void(Stream&)>;

struct Run {
  const OpTable& table;
  const Selection& selection;
  MemoryRates rates;

  // `bytes` is what one launch moves and what decides the number of layers.
  Layers layers(const LayerShape& shape, int64_t bytes) const;
  // Microseconds of a launch, in turns on all layers.
  double time(const std::vector<Launch>& launches, int64_t bytes) const;
  // Prints what was asked and found. `writes`: states are written, so plain reads and writes are the limit.
  void print(nlohmann::ordered_json line, double us, int64_t bytes, bool writes) const;
};

// The ops, each with its cases.
void run_verify(const Run& run);
void run_fold(const Run& run);
void run_commit(const Run& run);
void run_conv(const Run& run);
void run_prefill(const Run& run);
void run_snapshots(const Run& run);
// A whole step, amortised over many with recorded acceptance.
void run_steps(const Run& run);

}  // namespace deltaring::bench
