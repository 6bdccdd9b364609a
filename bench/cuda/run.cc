#include "cuda/run.h"

#include <algorithm>
#include <iostream>

namespace deltaring::bench {

namespace {

constexpr int64_t kMoreThanCache = 300'000'000;  // bytes of one round over all layers
constexpr int64_t kMostLayers = 128;             // then launches are so small that their memory no longer matters
constexpr int64_t kLaunches = 40;                // of a graph, fewer where each takes long
constexpr int64_t kReplayBytes = 8'000'000'000;

}  // namespace

Layers Run::layers(const LayerShape& shape, int64_t bytes) const {
  Layers all;
  const int64_t count = std::clamp<int64_t>(kMoreThanCache / bytes + 1, 2, kMostLayers);
  for (int64_t i = 0; i < count; i++) all.emplace_back(table, shape, 1000 * i);
  return all;
}

double Run::time(const std::vector<Launch>& launches, int64_t bytes) const {
  const auto size = static_cast<int64_t>(launches.size());
  const int64_t count = std::max(size, std::min(kLaunches, kReplayBytes / bytes));
  return graph_us(static_cast<int>(count), [&](int i, cudaStream_t stream) {
    launches[static_cast<size_t>(i % size)](*table.wrap_stream(stream));
  });
}

void Run::print(nlohmann::ordered_json line, double us, int64_t bytes, bool writes) const {
  const double rate = static_cast<double>(bytes) / us * 1e-6;
  line["us"] = us, line["bytes"] = bytes, line["TB/s"] = rate, line["share_of_read"] = rate / rates.read;
  if (writes) line["share_of_read_write"] = rate / rates.read_write;
  std::cout << line << std::endl;
}

}  // namespace deltaring::bench
