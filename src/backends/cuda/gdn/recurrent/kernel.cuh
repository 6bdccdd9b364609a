// The generic delta rule, token by token. Every rounding is written out (fmaf, __fmul_rn), so that each instance and
// every turn of a loop has the same bits.
#pragma once
#include "backends/cuda/gdn/recurrent/tile.cuh"
#include "backends/cuda/launch.h"

namespace deltaring::cuda {

// A lane's share of the block's part of the state: rows group + kGroups r of it, of K the chunks lane, lane +
// kGroupLanes, ... of kChunk neighbours.
template <int kElements>
struct State {
  float s[kGroupRows][kElements];
};

__device__ inline int group_lane() { return threadIdx.x % kGroupLanes; }
__device__ inline int row_in_block(int r) { return threadIdx.x / kGroupLanes + r * kGroups; }

// visit(r, i, v, k) for each chunk of a lane that holds part of the state: elements s[r][i .. i + kChunk) are columns k
// and on of row v.
template <int kElements, class Visit>
__device__ __forceinline__ void each_chunk(const RecurrentArgs& a, const Part& part, const Visit& visit) {
  const int64_t V = a.checkpoint.shape[2], K = a.checkpoint.shape[3];
#pragma unroll
  for (int r = 0; r < kGroupRows; r++) {
#pragma unroll
    for (int i = 0; i < kElements; i += kChunk) {
      const int64_t v = part.v0 + row_in_block(r), k = (group_lane() + i / kChunk * kGroupLanes) * kChunk;
      if (v < V && k < K) visit(r, i, v, k);
    }
  }
}

// The state of `head`, a view [V, K] that begins at `data` with rows `stride` apart.
template <int kElements>
__device__ void load_state(const RecurrentArgs& a, const Part& part, const void* data, int64_t stride,
                           State<kElements>& state) {
  const DType t = a.checkpoint.dtype;
  const int64_t K = a.checkpoint.shape[3];
#pragma unroll
  for (int r = 0; r < kGroupRows; r++)
#pragma unroll
    for (int i = 0; i < kElements; i++) state.s[r][i] = 0;
  each_chunk<kElements>(a, part, [&](int r, int i, int64_t v, int64_t k) {
    if (a.plan.wide) return load8(data, t, v * stride + k, &state.s[r][i]);
#pragma unroll
    for (int e = 0; e < kChunk; e++)
      if (k + e < K) state.s[r][i + e] = load(data, t, v * stride + k + e);
  });
}

template <int kElements>
__device__ void store_state(const RecurrentArgs& a, const Part& part, void* data, int64_t stride,
                            const State<kElements>& state) {
  const DType t = a.checkpoint.dtype;
  const int64_t K = a.checkpoint.shape[3];
  each_chunk<kElements>(a, part, [&](int r, int i, int64_t v, int64_t k) {
    if (a.plan.wide) return store8(data, t, v * stride + k, &state.s[r][i]);
#pragma unroll
    for (int e = 0; e < kChunk; e++)
      if (k + e < K) store(data, t, v * stride + k + e, state.s[r][i + e]);
  });
}

// The state behind position p - 1 on its way: rounded on a grid point and where it is stored.
template <int kElements>
__device__ void arrive(const RecurrentArgs& a, const Part& part, const Row& row, int64_t p, State<kElements>& state) {
  const bool on_grid = a.rules.grain != 0 && (p & (a.rules.grain - 1)) == 0, fold = p == row.fold_to;
  if (!on_grid && !fold) return;
#pragma unroll
  for (int r = 0; r < kGroupRows; r++)
#pragma unroll
    for (int i = 0; i < kElements; i++) state.s[r][i] = rounded(a.checkpoint.dtype, state.s[r][i]);
  if (fold) store_state(a, part, address_in(a.checkpoint, row.seat, part.head), a.checkpoint.stride[2], state);
  if (a.snapshots.data)
    store_state(a, part, address_in(a.snapshots, row.seat, p - 1 - row.first, part.head), a.snapshots.stride[3], state);
}

// The sum over the lanes that share a row, in all of them.
__device__ __forceinline__ float group_sum(float x) {
#pragma unroll
  for (int d = kGroupLanes / 2; d > 0; d /= 2) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, d));
  return x;
}

// S <- e^g S; d = beta (v - S k^); S <- S + d k^T; o = S q^ for the token in row t of the tile. `out` [V] null for a
// record.
template <int kElements, bool kChannels>
__device__ void step(const RecurrentArgs& a, const Part& part, const Tile<kElements, kChannels>& tile, int t,
                     State<kElements>& state, void* out) {
  const auto column = [](int i) { return (group_lane() + i / kChunk * kGroupLanes) * kChunk + i % kChunk; };
  float seen[kGroupRows] = {}, d[kGroupRows], o[kGroupRows] = {};
#pragma unroll
  for (int i = 0; i < kElements; i++) {
    const float k = tile.k[t][column(i)], decay = tile.decay[t][kChannels ? column(i) : 0];
#pragma unroll
    for (int r = 0; r < kGroupRows; r++) {
      state.s[r][i] = __fmul_rn(state.s[r][i], decay);
      seen[r] = fmaf(state.s[r][i], k, seen[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kGroupRows; r++)
    d[r] = __fmul_rn(tile.beta[t], __fsub_rn(tile.v[t][row_in_block(r)], group_sum(seen[r])));
#pragma unroll
  for (int i = 0; i < kElements; i++) {
    const float k = tile.k[t][column(i)], q = out ? tile.q[t][column(i)] : 0.0f;
#pragma unroll
    for (int r = 0; r < kGroupRows; r++) {
      state.s[r][i] = fmaf(d[r], k, state.s[r][i]);
      o[r] = fmaf(state.s[r][i], q, o[r]);
    }
  }
  if (!out) return;
#pragma unroll
  for (int r = 0; r < kGroupRows; r++) {
    const float sum = group_sum(o[r]);
    const int64_t v = part.v0 + row_in_block(r);
    if (group_lane() == 0 && v < a.checkpoint.shape[2]) store(out, a.out.dtype, v, sum);
  }
}

// Zeros where a row without a seat has outputs.
__device__ inline void clear(const RecurrentArgs& a, const Part& part, const Row& row) {
  const int64_t v = part.v0 + threadIdx.x % kBlockRows;
  if (v >= a.checkpoint.shape[2]) return;
  for (int32_t i = threadIdx.x / kBlockRows; i < row.length; i += kThreads / kBlockRows)
    store(address_in(a.out, row.begin + i, part.head), a.out.dtype, v, 0.0f);
}

// Grid: parts of heads of rows of layers, the parts innermost.
template <int kElements, bool kChannels>
__global__ __launch_bounds__(kThreads) void recurrent_kernel(const __grid_constant__ RecurrentArgs a) {
  __shared__ Tile<kElements, kChannels> tile;
  const Part part = part_of(a);
  const int32_t layer = part.b / a.rows.count;
  Row row = row_of(a.rows, a.rules, part.b % a.rows.count);
  if (row.seat < 0) return clear(a, part, row);
  row.seat += layer * static_cast<int32_t>(a.rules.seats);
  if (!a.record_k.data) row.folded = row.first, row.fold_to = a.snapshots.data ? row.first : row.end();
  const int64_t end = a.rules.op == RowOp::fold ? row.fold_to : row.end();
  if (row.length == 0 && row.fold_to == row.folded) return;

  State<kElements> state;
  load_state(a, part, address_in(a.checkpoint, row.seat, part.head), a.checkpoint.stride[2], state);
  for (int64_t begin = row.folded; begin < end; begin += kTile) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kTile), end - begin));
    __syncthreads();  // the last tile has been read
    for (int t = threadIdx.x / 32; t < count; t += kThreads / 32) {
      const int64_t p = begin + t;
      put_token(a, part, p < row.first ? record_at(a, part, row, p) : token_at(a, part, row.begin + (p - row.first)), t,
                tile);
    }
    __syncthreads();
    for (int t = 0; t < count; t++) {
      const int64_t p = begin + t;
      void* out = p < row.first ? nullptr : address_in(a.out, row.begin + (p - row.first), part.head);
      step(a, part, tile, t, state, out);
      arrive(a, part, row, p + 1, state);
    }
  }
}

template <int kElements>
void launch_recurrent(const RecurrentArgs& args, unsigned blocks, cudaStream_t stream) {
  if (args.plan.channels) {
    recurrent_kernel<kElements, true><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    recurrent_kernel<kElements, false><<<blocks, kThreads, 0, stream>>>(args);
  }
}

}  // namespace deltaring::cuda
