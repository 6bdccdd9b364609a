// Linear layers in the shapes of Qwen3.5-0.8B with bf16 weights that come from memory. Every share is a ratio of
// medians taken side by side, so that it holds on a machine that does other things too:
//   of_read  time of a plain read of the weights / time of the product
//   x_M1     time of the product / time of the product with one row
//   of_sgemm time of oneDNN's f32 sgemm, weights already in f32 / time of the product
//   of_gemm  flop/s of the product / the machine's best GEMM rate (measured once, at the start)
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <random>

#include "backends/tables.h"
#include "roofline.h"

namespace deltaring::bench {
namespace {

constexpr int64_t kMemory = int64_t{512} << 20;  // far more than the caches: each call reads weights not seen lately

struct Machine {
  Machine() : pool(0), weights(kMemory) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int64_t i = 0; i < kMemory / 2; i++) store_from_float(weights.data(), DType::bf16, i, uniform(random));
  }
  ThreadPool pool;  // of the yardsticks; the backend has its own
  std::vector<std::byte> weights;
  Roofline roofline;
};

// out [M, N] = x [M, K] w [N, K]^T on the next weights of the memory.
class Product {
 public:
  Product(Machine& machine, int64_t M, int64_t N, int64_t K)
      : machine_(machine), M_(M), N_(N), K_(K), x_(M * K, 0.5f), out_(M * N), stream_(backend("cpu").make_stream(0)) {}

  int64_t weight_bytes() const { return N_ * K_ * 2; }
  double flops() const { return 2.0 * static_cast<double>(M_ * N_ * K_); }

  std::byte* next_weights() {
    const int64_t offset = next_++ % (kMemory / weight_bytes()) * weight_bytes();
    return machine_.weights.data() + offset;
  }
  void run(int64_t rows) {
    backend("cpu").linear({.x = dense<2>(x_.data(), DType::f32, {rows, K_}),
                           .w = dense<2>(next_weights(), DType::bf16, {N_, K_}),
                           .out = dense<2>(out_.data(), DType::f32, {rows, N_})},
                          *stream_);
  }
  void read() { benchmark::DoNotOptimize(read_all(machine_.pool, next_weights(), weight_bytes())); }
#ifdef DELTARING_ONEDNN
  void sgemm() {
    w_.resize(N_ * K_, 0.5f);
    onednn_sgemm(M_, N_, K_, x_.data(), w_.data(), out_.data());
  }
#endif

 private:
  Machine& machine_;
  int64_t M_, N_, K_, next_ = 0;
  std::vector<float> x_, w_, out_;
  std::unique_ptr<Stream> stream_;
};

// Seconds of the second of two runs: the threads are awake, as they are within a step.
template <class Body>
double second_run(const Body& body) {
  body();
  return seconds(body);
}

void run_linear(benchmark::State& state, Machine& machine, int64_t M, int64_t N, int64_t K) {
  Product product(machine, M, N, K);
  std::vector<double> own, one, read, sgemm;
  for (auto _ : state) {
    own.push_back(second_run([&] { product.run(M); }));
    state.SetIterationTime(own.back());
    if (M <= 8) one.push_back(second_run([&] { product.run(1); }));
    if (M <= 8) read.push_back(second_run([&] { product.read(); }));
  }
#ifdef DELTARING_ONEDNN  // behind the loop: its threads spin for a while after each call
  if (M > 8) {
    for (size_t i = 0; i < own.size(); i++) sgemm.push_back(second_run([&] { product.sgemm(); }));
  }
#endif
  const double time = median(own);
  state.counters["GB/s"] = static_cast<double>(product.weight_bytes()) / time / 1e9;
  state.counters["GFLOP/s"] = product.flops() / time / 1e9;
  if (!read.empty()) state.counters["of_read"] = median(read) / time;
  if (!one.empty()) state.counters["x_M1"] = time / median(one);
  if (!sgemm.empty()) state.counters["of_sgemm"] = median(sgemm) / time;
  if (machine.roofline.gemm() > 0) state.counters["of_gemm"] = product.flops() / time / machine.roofline.gemm();
}

}  // namespace
}  // namespace deltaring::bench

int main(int argc, char** argv) {
  using namespace deltaring::bench;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  Machine machine;
  machine.roofline = measure_roofline(machine.pool, machine.weights);
  benchmark::AddCustomContext("read bandwidth", fmt::format("{:.1f} GB/s", machine.roofline.read / 1e9));
  benchmark::AddCustomContext("oneDNN f32 sgemm", fmt::format("{:.0f} GFLOP/s", machine.roofline.sgemm / 1e9));
  benchmark::AddCustomContext("oneDNN bf16 matmul", fmt::format("{:.0f} GFLOP/s", machine.roofline.bf16_gemm / 1e9));
  for (const auto& [N, K] :
       {std::array<int64_t, 2>{1024, 1024}, {2048, 1024}, {3584, 1024}, {6144, 1024}, {1024, 2048}, {1024, 3584}}) {
    for (int64_t M : {1, 2, 4, 8, 64, 256}) {
      const auto body = [&machine, M, N = N, K = K](benchmark::State& state) { run_linear(state, machine, M, N, K); };
      benchmark::RegisterBenchmark(fmt::format("linear/N:{}/K:{}/M:{}", N, K, M).c_str(), body)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond)
          ->Iterations(M <= 8 ? 101 : 11);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
}
