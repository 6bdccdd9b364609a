#include "backends/cuda/device/element.cuh"
#include "backends/cuda/device/gates.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/ops.h"

namespace deltaring::cuda {

namespace {

constexpr int kGatesThreads = 256;

// A thread per gate channel of a token, the channels innermost.
__global__ __launch_bounds__(kGatesThreads) void gates_kernel(const __grid_constant__ GdnGatesArgs args) {
  const int64_t Hv = args.a.shape[1], G = args.a.shape[2];
  const int64_t id = int64_t{blockIdx.x} * kGatesThreads + threadIdx.x;
  if (id >= args.a.shape[0] * Hv * G) return;
  const int64_t i = id % G, h = id / G % Hv, t = id / G / Hv;
  float_in(args.g, t, h)[i] = log_decay(args.A_log[h], args.dt_bias[h * G + i], float_in(args.a, t, h)[i]);
  if (i == 0) *float_in(args.beta, t, h) = sigmoid(*float_in(args.b, t, h));
}

}  // namespace

// Bytes: a, b, g and beta once, 8 Hv (G + 1) a token.
void gdn_gates(const GdnGatesArgs& args, Stream& stream) {
  check(args);
  const int64_t gates = args.a.shape[0] * args.a.shape[1] * args.a.shape[2];
  if (gates == 0) return;
  const unsigned blocks = grid_of("gdn_gates", (gates + kGatesThreads - 1) / kGatesThreads);
  gates_kernel<<<blocks, kGatesThreads, 0, cuda_stream(stream).get()>>>(args);
  check_launch("gdn_gates");
}

}  // namespace deltaring::cuda
