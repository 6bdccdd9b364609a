#include <algorithm>

#include "backends/cuda/device/element.cuh"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/ops.h"

namespace deltaring::cuda {

namespace {

constexpr int kConvThreads = 128;

struct ConvPlan {
  int64_t tokens;    // of a chunk, >= taps-1: only the first chunk of a row looks into the ring
  int64_t chunks;    // of a row; the last takes what is left
  int64_t channels;  // blocks of kConvThreads channels
};

ConvPlan plan_conv(int64_t C, int64_t taps, int64_t longest) {
  const int64_t tokens = std::max<int64_t>(taps, 16);
  return {.tokens = tokens,
          .chunks = std::max<int64_t>(1, (longest + tokens - 1) / tokens),
          .channels = (C + kConvThreads - 1) / kConvThreads};
}

// Output of channel c at position p: taps ascend, so that the bits depend on the taps alone.
__device__ float convolve(const ConvArgs& a, const Row& row, int64_t p, int64_t c) {
  const int64_t taps = a.weight.shape[1], Rc = a.ring.shape[1];
  float sum = 0;
  for (int64_t j = 0; j < taps; j++) {
    const int64_t from = p - (taps - 1) + j;
    if (from < 0) continue;
    const float x = from < row.first ? load(address_in(a.ring, row.seat, from % Rc), a.ring.dtype, c)
                                     : load(address_in(a.x, row.begin + (from - row.first)), a.x.dtype, c);
    sum = fmaf(*float_in(a.weight, c, j), x, sum);
  }
  return __fdiv_rn(sum, __fadd_rn(1.0f, expf(-sum)));
}

// A thread per channel of a chunk of a row; the channels innermost. The thread that reads a channel of the ring is the
// one that writes it, afterwards.
__global__ __launch_bounds__(kConvThreads) void conv_kernel(const __grid_constant__ ConvArgs a, const RowRules rules,
                                                            const ConvPlan plan) {
  const int64_t id = blockIdx.x / plan.channels, chunk = id % plan.chunks, Rc = a.ring.shape[1];
  const int64_t c = blockIdx.x % plan.channels * kConvThreads + threadIdx.x;
  if (c >= a.x.shape[1]) return;
  const Row row = row_of(a.rows, rules, static_cast<int32_t>(id / plan.chunks));
  const int64_t end = chunk + 1 == plan.chunks ? row.length : min(int64_t{row.length}, (chunk + 1) * plan.tokens);
  for (int64_t i = chunk * plan.tokens; i < end; i++) {
    const float y = row.seat < 0 ? 0.0f : convolve(a, row, row.first + i, c);
    store(address_in(a.out, row.begin + i), a.out.dtype, c, y);
  }
  if (chunk > 0 || row.seat < 0) return;
  for (int64_t i = max(int64_t{0}, row.length - Rc); i < row.length; i++)
    store(address_in(a.ring, row.seat, (row.first + i) % Rc), a.ring.dtype, c,
          load(address_in(a.x, row.begin + i), a.x.dtype, c));
}

}  // namespace

// Bytes: x and out once, the weight once a row; of each row's ring taps-1 inputs in, its last Rc inputs out.
void conv(const ConvArgs& args, Stream& stream) {
  const int64_t tokens = args.x.shape[0], C = args.x.shape[1];
  const RowRules rules{
      .op = RowOp::tokens, .tokens = tokens, .longest = args.rows.longest, .seats = args.ring.shape[0]};
  ConvArgs views = args;
  const StandIn seatless(tokens);
  views.rows = seatless.rows();
  check(views);
  check_rows("conv", args.rows, rules);
  if (tokens == 0 || C == 0) return;
  const ConvPlan plan = plan_conv(C, args.weight.shape[1], args.rows.longest);
  const unsigned blocks = grid_of("conv", args.rows.count * plan.chunks * plan.channels);
  conv_kernel<<<blocks, kConvThreads, 0, cuda_stream(stream).get()>>>(args, rules, plan);
  check_launch("conv");
}

}  // namespace deltaring::cuda
