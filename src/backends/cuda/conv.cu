#include "backends/cuda/aligned.h"
#include "backends/cuda/conv_plan.h"
#include "backends/cuda/device/element.cuh"
#include "backends/cuda/device/gates.cuh"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/ops.h"
#include "backends/cuda/ptx.cuh"

namespace deltaring::cuda {

namespace {

struct ConvWork {
  ConvArgs a;
  RowRules rules;
  ConvPlan plan;
};

// Tokens [begin, end) of a row. Of a row's chunks the one that begins at 0 reads the ring and writes it afterwards,
// each channel by the thread that has read it; the others find what precedes them among the row's own tokens.
struct Chunk {
  Row row;
  int32_t begin, end;
};

__device__ Chunk chunk_of(const ConvWork& work, uint32_t item) {
  const uint32_t chunks = static_cast<uint32_t>(work.plan.chunks), b = item / chunks, index = item - b * chunks;
  const Row row = row_of(work.a.rows, work.rules, static_cast<int32_t>(b));
  const int32_t tokens = static_cast<int32_t>(work.plan.tokens),
                begin = min(static_cast<int32_t>(index) * tokens, row.length), left = row.length - begin;
  return {.row = row, .begin = begin, .end = begin + (index + 1 == chunks ? left : min(left, tokens))};
}

// visit(a chunk) for those of the block.
template <class Visit>
__device__ void each_chunk(const ConvWork& work, const Visit& visit) {
  const uint32_t channels = static_cast<uint32_t>(work.plan.channels), step = gridDim.x / channels;
  for (uint32_t item = blockIdx.x / channels; item < work.plan.items; item += step) visit(chunk_of(work, item));
}

__device__ uint32_t channel_block(const ConvPlan& plan) { return blockIdx.x % static_cast<uint32_t>(plan.channels); }

// A slot at most one turn away from the ring.
template <class Int>
__device__ Int wrapped(Int slot, Int Rc) {
  return slot < 0 ? slot + Rc : slot < Rc ? slot : slot - Rc;
}

// Output of channel c for token i of a row whose first position has `slot`.
__device__ float convolve(const ConvArgs& a, const Row& row, int64_t slot, int32_t i, int64_t c) {
  const int64_t taps = a.weight.shape[1], Rc = a.ring.shape[1];
  float sum = 0;
  for (int64_t j = 0; j < taps; j++) {
    const int64_t from = i - (taps - 1) + j;
    if (row.first + from < 0) continue;
    const float x = from < 0 ? load(address_in(a.ring, row.seat, wrapped(slot + from, Rc)), a.ring.dtype, c)
                             : load(address_in(a.x, row.begin + from), a.x.dtype, c);
    sum = fmaf(*float_in(a.weight, c, j), x, sum);
  }
  return silu(sum);
}

// A thread a channel: any taps, any views. Every output reads its inputs.
__global__ __launch_bounds__(kConvThreads) void plain_kernel(const __grid_constant__ ConvWork work) {
  wait_for_previous();
  launch_dependents();
  const ConvArgs& a = work.a;
  const int64_t c = int64_t{channel_block(work.plan)} * kConvThreads + threadIdx.x, Rc = a.ring.shape[1];
  if (c >= a.x.shape[1]) return;
  each_chunk(work, [&](const Chunk& chunk) {
    const Row& row = chunk.row;
    const int64_t slot = row.seat < 0 || Rc == 0 ? 0 : row.first % Rc;
    for (int32_t i = chunk.begin; i < chunk.end; i++)
      store(address_in(a.out, row.begin + i), a.out.dtype, c, row.seat < 0 ? 0.0f : convolve(a, row, slot, i, c));
    if (chunk.begin > 0 || row.seat < 0 || Rc == 0) return;
    const int64_t kept = max(int64_t{0}, row.length - Rc);
    int64_t to = (slot + kept) % Rc;
    for (int64_t i = kept; i < row.length; i++) {
      store(address_in(a.ring, row.seat, to), a.ring.dtype, c, load(address_in(a.x, row.begin + i), a.x.dtype, c));
      to = wrapped(to + 1, Rc);
    }
  });
}

using Weights = float[kConvTaps][kConvWidth];

// Those of a thread's channels, by way of shared memory. Behind each thread's is a gap, so that reads meet no bank
// twice.
__device__ void load_weights(const View<2>& weight, int32_t first, Weights& w) {
  __shared__ float4 shared[kConvThreads * (kConvWidth + 1)];
  const int32_t count = min(kConvThreads * kConvWidth, static_cast<int32_t>(weight.shape[0]) - first);
  for (int32_t i = threadIdx.x; i < count; i += kConvThreads)
    shared[i + i / kConvWidth] = *reinterpret_cast<const float4*>(float_in(weight, first + i));
  __syncthreads();
#pragma unroll
  for (int e = 0; e < kConvWidth; e++) {
    const float4 taps = shared[threadIdx.x * (kConvWidth + 1) + e];
    w[0][e] = taps.x, w[1][e] = taps.y, w[2][e] = taps.z, w[3][e] = taps.w;
  }
}

// Channels [c, c + kConvWidth) of a row that has a seat, on their way along its tokens.
template <DType t>
struct Slide {
  static constexpr int kBefore = kConvTaps - 1;
  const ConvArgs& a;
  const Row& row;
  int32_t Rc;
  const char* x;                        // of the row's first token
  char *out, *ring;                     // of its first token; of slot 0
  int64_t x_step, out_step, ring_step;  // bytes
  Eight<t> ahead[kConvTaps];            // tokens that have been asked for
  float window[kConvTaps][kConvWidth];  // the last inputs: that of the chunk's token m in row (m + kBefore) % kConvTaps

  __device__ __forceinline__ Slide(const ConvArgs& a, const Row& row, int32_t c)
      : a(a),
        row(row),
        Rc(static_cast<int32_t>(a.ring.shape[1])),
        x(static_cast<const char*>(address_in(a.x, row.begin, c))),
        out(static_cast<char*>(address_in(a.out, row.begin, c))),
        ring(static_cast<char*>(address_in(a.ring, row.seat, 0, c))),
        x_step(a.x.stride[0] * static_cast<int64_t>(size_of(t))),
        out_step(a.out.stride[0] * static_cast<int64_t>(size_of(a.out.dtype))),
        ring_step(a.ring.stride[1] * static_cast<int64_t>(size_of(a.ring.dtype))) {}

  // Asks for tokens i and on, as many as are ahead but none from `end` on.
  __device__ __forceinline__ void fetch(int32_t i, int32_t end) {
#pragma unroll
    for (int u = 0; u < kConvTaps; u++)
      if (i + u < end) ahead[u] = Eight<t>::at(x + (i + u) * x_step);
  }

  // Inputs before the chunk, without the first `missing`: input j lies at(j).
  template <DType from, class At>
  __device__ __forceinline__ void precede(int32_t missing, const At& at) {
    Eight<from> inputs[kBefore];
#pragma unroll
    for (int j = 0; j < kBefore; j++)
      if (j >= missing) inputs[j] = Eight<from>::at(at(j));
#pragma unroll
    for (int j = 0; j < kBefore; j++)
      if (j >= missing) inputs[j].values(window[j]);
  }

  __device__ __forceinline__ void put(int32_t slot, const Eight<t>& input) const {
    char* to = ring + slot * ring_step;
    if (a.ring.dtype == t) return input.store(to);
    float values[kConvWidth];
    input.values(values);
    Eight<DType::f32>::of(values).store(to);
  }

  __device__ __forceinline__ void along(const Chunk& chunk, const Weights& w) {
    const bool opens = chunk.begin == 0;
    const int32_t missing = opens ? kBefore - static_cast<int32_t>(min(row.first, int64_t{kBefore})) : 0;
    const int32_t kept = max(0, row.length - Rc);  // tokens from here on stay in the ring
    int32_t slot = opens ? static_cast<int32_t>(row.first % Rc) : 0;
    fetch(chunk.begin, chunk.end);
    const auto in_ring = [&](int j) { return ring + wrapped(slot - kBefore + j, Rc) * ring_step; };
    if (!opens) {
      precede<t>(0, [&](int j) { return x + (chunk.begin - kBefore + j) * x_step; });
    } else if (a.ring.dtype == t) {
      precede<t>(missing, in_ring);
    } else {
      precede<DType::f32>(missing, in_ring);
    }
    for (int32_t i = chunk.begin; i < chunk.end; i += kConvTaps) {
      if (i > chunk.begin) fetch(i, chunk.end);
#pragma unroll
      for (int u = 0; u < kConvTaps; u++) {
        if (i + u >= chunk.end) break;
        ahead[u].values(window[(u + kBefore) % kConvTaps]);
        float y[kConvWidth] = {};
#pragma unroll
        for (int j = 0; j < kConvTaps; j++) {
          if (i - chunk.begin + u + j < missing) continue;  // a position before 0
#pragma unroll
          for (int e = 0; e < kConvWidth; e++) y[e] = fmaf(w[j][e], window[(u + j) % kConvTaps][e], y[e]);
        }
#pragma unroll
        for (int e = 0; e < kConvWidth; e++) y[e] = silu(y[e]);
        with_dtype(a.out.dtype, [&](auto to) { Eight<to>::of(y).store(out + (i + u) * out_step); });
        if (!opens) continue;
        if (i + u >= kept) put(slot, ahead[u]);
        slot = wrapped(slot + 1, Rc);
      }
    }
    if (opens && chunk.end < row.length) keep(max(chunk.end, kept), (slot + max(0, kept - chunk.end)) % Rc);
  }

  // Tokens from i on, behind the chunk, into the ring from `slot` on.
  __device__ __forceinline__ void keep(int32_t i, int32_t slot) {
    for (; i < row.length; i += kConvTaps) {
      fetch(i, row.length);
#pragma unroll
      for (int u = 0; u < kConvTaps; u++) {
        if (i + u >= row.length) break;
        put(slot, ahead[u]);
        slot = wrapped(slot + 1, Rc);
      }
    }
  }
};

__device__ void clear(const ConvArgs& a, const Chunk& chunk, int32_t c) {
  const float zeros[kConvWidth] = {};
  for (int32_t i = chunk.begin; i < chunk.end; i++)
    with_dtype(a.out.dtype, [&](auto to) { Eight<to>::of(zeros).store(address_in(a.out, chunk.row.begin + i, c)); });
}

// A thread kConvWidth channels of dtype t: kConvTaps taps, views in whole 16-byte pieces. Each input is loaded once a
// chunk.
template <DType t>
__global__ __launch_bounds__(kConvThreads, t == DType::f32
                                               ? 3
                                               : kConvBlocks) void wide_kernel(const __grid_constant__ ConvWork work) {
  wait_for_previous();
  launch_dependents();
  const int32_t first = static_cast<int32_t>(channel_block(work.plan)) * kConvThreads * kConvWidth,
                c = first + static_cast<int32_t>(threadIdx.x) * kConvWidth;
  Weights w;
  load_weights(work.a.weight, first, w);
  if (c >= work.a.x.shape[1]) return;
  each_chunk(work, [&](const Chunk& chunk) {
    if (chunk.row.seat < 0) return clear(work.a, chunk, c);
    if (chunk.begin < chunk.end) Slide<t>(work.a, chunk.row, c).along(chunk, w);
  });
}

}  // namespace

// Bytes: x and out once, the weight once a block; of each row's ring taps-1 inputs in, its last Rc inputs out.
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
  const ConvPlan plan = plan_conv({.B = args.rows.count,
                                   .T = args.rows.longest,
                                   .C = C,
                                   .taps = args.weight.shape[1],
                                   .Rc = args.ring.shape[1],
                                   .aligned = aligned_rows(args.x) && aligned_rows(args.weight) &&
                                              aligned_rows(args.ring) && aligned_rows(args.out)},
                                  cuda_stream(stream).limits());
  grid_of("conv", plan.items);
  const auto kernel = !plan.wide                    ? plain_kernel
                      : args.x.dtype == DType::f32  ? wide_kernel<DType::f32>
                      : args.x.dtype == DType::bf16 ? wide_kernel<DType::bf16>
                                                    : wide_kernel<DType::f16>;
  const LaunchShape shape{.blocks = grid_of("conv", plan.blocks), .threads = kConvThreads, .early = plan.early};
  launch("conv", kernel, shape, cuda_stream(stream).get(), ConvWork{.a = args, .rules = rules, .plan = plan});
}

}  // namespace deltaring::cuda
