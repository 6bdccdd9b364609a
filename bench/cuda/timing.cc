#include "cuda/timing.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "cuda/layer.h"

namespace deltaring::bench {

namespace {

constexpr int kReplays = 9;

}  // namespace

void ok(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail(ErrorKind::unsupported, "{}: {}", call, cudaGetErrorString(status));
}

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
  for (int round = 0; round < kReplays; round++) {
    ok(cudaEventRecord(begin, stream), "cudaEventRecord");
    ok(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
    ok(cudaEventRecord(end, stream), "cudaEventRecord");
    ok(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    ok(cudaEventElapsedTime(&times.emplace_back(), begin, end), "cudaEventElapsedTime");
  }
  std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
  cudaGraphExecDestroy(replay), cudaGraphDestroy(graph), cudaEventDestroy(begin), cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return times[kReplays / 2] * 1e3 / count;
}

MemoryRates memory_rates(const OpTable& table) {
  const size_t bytes = size_t{1} << 31;
  const DeviceArray memory(*table.memory, bytes), sink(*table.memory, 256);
  fill_uniform(memory.get(), static_cast<int64_t>(bytes / 4), DType::f32, 1, 0, 1);
  const double read = graph_us(
      4, [&](int, cudaStream_t stream) { stream_read(memory.get(), bytes, static_cast<float*>(sink.get()), stream); });
  const double both = graph_us(4, [&](int, cudaStream_t stream) { stream_update(memory.get(), bytes, stream); });
  return {.read = static_cast<double>(bytes) / read * 1e-6, .read_write = 2 * static_cast<double>(bytes) / both * 1e-6};
}

}  // namespace deltaring::bench
