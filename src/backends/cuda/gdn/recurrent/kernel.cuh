// The generic delta rule, token by token. Every rounding is written out (fmaf, __fmul_rn), so that each instance and
// every turn of a loop has the same bits.
#pragma once
#include "backends/cuda/gdn/recurrent/tile.cuh"
#include "backends/cuda/ptx.cuh"

namespace deltaring::cuda {

// A lane's share of the block's part of the state: the rows of its group, of K the chunks lane, lane + kGroupLanes, ...
// of 16 bytes.
template <class F>
struct State {
  float s[kGroupRows][F::kElements];
};

static_assert(kGroupRows == 2);
__device__ inline int group_lane() { return threadIdx.x % kGroupLanes; }
// A lane's own row of the two: the one whose sums it has and whose output it knows.
__device__ inline int own_row() { return threadIdx.x / (kGroupLanes / kGroupRows); }
__device__ inline bool owns_second() { return group_lane() >= kGroupLanes / 2; }

// A [V, K] in memory as a lane sees it: its first element, and the bytes to its next row. Null: nowhere.
struct Place {
  char* at;
  int64_t row;
};

// What of a [V, K] is a lane's: from its first element on there are so many rows, at most two, and columns.
template <class F>
struct Share {
  int32_t rows, columns;
  int64_t v, k;

  __device__ Share(const RecurrentArgs& a, const Part& part)
      : v(part.v0 + threadIdx.x / kGroupLanes * kGroupRows), k(group_lane() * F::kChunk) {
    rows = static_cast<int32_t>(max(int64_t{0}, min(int64_t{kGroupRows}, a.checkpoint.shape[2] - v)));
    columns = static_cast<int32_t>(a.checkpoint.shape[3] - k);
  }
  // One that begins at `data` and has rows `stride` apart.
  __device__ Place in(void* data, int64_t stride) const {
    return {static_cast<char*>(data) + (v * stride + k) * F::kBytes, stride * F::kBytes};
  }
};

// visit(r, i, at) for each chunk s[r][i .. i + kChunk) that holds part of the state, which is at `at`.
template <class F, class Visit>
__device__ __forceinline__ void each_chunk(const Share<F>& share, const Place& place, const Visit& visit) {
#pragma unroll
  for (int r = 0; r < kGroupRows; r++) {
#pragma unroll
    for (int i = 0; i < F::kElements; i += F::kChunk) {
      if (r < share.rows && i * kGroupLanes < share.columns)
        visit(r, i, place.at + r * place.row + i * kGroupLanes * F::kBytes);
    }
  }
}

// Asks for the state; `open` makes f32 of what came: until then a chunk of two-byte elements lies in its first four.
template <class F>
__device__ __forceinline__ void load_state(const Share<F>& share, const Place& from, bool wide, State<F>& state) {
#pragma unroll
  for (int r = 0; r < kGroupRows; r++)
#pragma unroll
    for (int i = 0; i < F::kElements; i++) state.s[r][i] = 0;
  each_chunk(share, from, [&](int r, int i, const char* at) {
    float* const s = &state.s[r][i];
    if (wide) {
      const float4 bits = __ldcs(reinterpret_cast<const float4*>(at));
      s[0] = bits.x, s[1] = bits.y, s[2] = bits.z, s[3] = bits.w;
      return;
    }
#pragma unroll
    for (int e = 0; e < F::kChunk; e++)
      if (i * kGroupLanes + e < share.columns) s[e] = load(at, F::kState, e);
  });
}

template <class F>
__device__ __forceinline__ void open(bool wide, State<F>& state) {
  if (!wide) return;
#pragma unroll
  for (int r = 0; r < kGroupRows; r++) {
#pragma unroll
    for (int i = 0; i < F::kElements; i += F::kChunk)
      spread<F::kState>(piece_of<DType::f32>(&state.s[r][i]), &state.s[r][i]);
  }
}

// The state rounded to its dtype and, where there is a place for it, stored.
template <class F>
__device__ __forceinline__ void settle(const Share<F>& share, const Place& to, bool wide, State<F>& state) {
  uint4 pieces[kGroupRows][F::kElements / F::kChunk];
#pragma unroll
  for (int r = 0; r < kGroupRows; r++) {
#pragma unroll
    for (int i = 0; i < F::kElements; i += F::kChunk) {
      uint4& piece = pieces[r][i / F::kChunk];
      piece = piece_of<F::kState>(&state.s[r][i]);
      spread<F::kState>(piece, &state.s[r][i]);
    }
  }
  if (!to.at) return;
  if (wide)
    return each_chunk(share, to,
                      [&](int r, int i, char* at) { __stcs(reinterpret_cast<uint4*>(at), pieces[r][i / F::kChunk]); });
  each_chunk(share, to, [&](int r, int i, char* at) {
#pragma unroll
    for (int e = 0; e < F::kChunk; e++)
      if (i * kGroupLanes + e < share.columns) store(at, F::kState, e, state.s[r][i + e]);
  });
}

// Of the sums over the lanes that share two rows, the one of a lane's own row. Both trees in the lanes of one: the
// first exchange is that of halves.
__device__ __forceinline__ float own_sum(const float (&x)[kGroupRows]) {
  const float other = __shfl_xor_sync(~0u, owns_second() ? x[0] : x[1], kGroupLanes / 2);
  float sum = __fadd_rn(owns_second() ? x[1] : x[0], other);
#pragma unroll
  for (int d = kGroupLanes / 4; d > 0; d /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, d));
  return sum;
}

// S <- e^g S; d = beta (v - S k^); S <- S + d k^T for the token in row t of the tile.
template <class F>
__device__ __forceinline__ void step(const Tile<F>& tile, int t, State<F>& state) {
  float k[F::kElements], decay[F::kDecays], seen[kGroupRows] = {}, d[kGroupRows];
  read(tile.k[t], k);
  if constexpr (F::kChannels) {
    read(tile.decay[t], decay);
  } else {
    decay[0] = tile.decay[t][0];
  }
#pragma unroll
  for (int i = 0; i < F::kElements; i++) {
#pragma unroll
    for (int r = 0; r < kGroupRows; r++) {
      state.s[r][i] = __fmul_rn(state.s[r][i], decay[F::kChannels ? i : 0]);
      seen[r] = fmaf(state.s[r][i], k[i], seen[r]);
    }
  }
  const float own = __fmul_rn(tile.beta[t], __fsub_rn(tile.v[t][own_row()], own_sum(seen))),
              other = __shfl_xor_sync(~0u, own, kGroupLanes / 2);
  d[0] = owns_second() ? other : own, d[1] = owns_second() ? own : other;
#pragma unroll
  for (int i = 0; i < F::kElements; i++) {
#pragma unroll
    for (int r = 0; r < kGroupRows; r++) state.s[r][i] = fmaf(d[r], k[i], state.s[r][i]);
  }
}

// o = S q^ behind that step, which waits in the tile where v was: only the lanes of its row have read that.
template <class F>
__device__ __forceinline__ void output(Tile<F>& tile, int t, const State<F>& state) {
  float q[F::kElements], o[kGroupRows] = {};
  read(tile.q[t], q);
#pragma unroll
  for (int i = 0; i < F::kElements; i++) {
#pragma unroll
    for (int r = 0; r < kGroupRows; r++) o[r] = fmaf(state.s[r][i], q[i], o[r]);
  }
  const float own = own_sum(o);
  __syncwarp();
  if (group_lane() % (kGroupLanes / kGroupRows) == 0) tile.v[t][own_row()] = own;
}

// The outputs among the tile's `count` tokens from position p on: each warp those of its rows.
template <class F>
__device__ __forceinline__ void store_outputs(const RecurrentArgs& a, const Part& part, const Row& row, int64_t p,
                                              int count, const Tile<F>& tile) {
  constexpr int kRows = kGroupRows * 32 / kGroupLanes;  // of a warp
  __syncwarp();
  for (int i = threadIdx.x % 32; i < count * kRows; i += 32) {
    const int t = i / kRows, v = threadIdx.x / 32 * kRows + i % kRows;
    const int64_t token = p + t - row.first;
    if (token >= 0 && part.v0 + v < a.checkpoint.shape[2])
      store(address_in(a.out, row.begin + token, part.head), a.out.dtype, part.v0 + v, tile.v[t][v]);
  }
}

// Zeros where a row without a seat has outputs.
__device__ inline void clear(const RecurrentArgs& a, const Part& part, const Row& row) {
  const int64_t v = part.v0 + threadIdx.x % kBlockRows;
  if (v >= a.checkpoint.shape[2]) return;
  for (int32_t i = threadIdx.x / kBlockRows; i < row.length; i += kThreads / kBlockRows)
    store(address_in(a.out, row.begin + i, part.head), a.out.dtype, v, 0.0f);
}

// Grid: parts of heads of rows of layers, the parts innermost. The first tokens are asked for before the state is
// waited for.
template <class F>
__global__ __launch_bounds__(kThreads,
                             blocks_with(F::kElements,
                                         F::kChannels)) void recurrent_kernel(const __grid_constant__ RecurrentArgs a) {
  __shared__ Tile<F> tile;
  wait_for_previous();
  launch_dependents();
  const Part part = part_of(a);
  const int32_t layer = a.layers > 1 ? part.b / a.rows.count : 0;
  Row row = row_of(a.rows, a.rules, part.b - layer * a.rows.count);
  if (row.seat < 0) return clear(a, part, row);
  row.seat += layer * static_cast<int32_t>(a.rules.seats);
  if (!a.record_k.data) row.folded = row.first, row.fold_to = a.snapshots.data ? row.first : row.end();
  const int64_t end = a.rules.op == RowOp::fold ? row.fold_to : row.end();
  if (row.length == 0 && row.fold_to == row.folded) return;

  const int warp = threadIdx.x / 32;
  const Share<F> share(a, part);
  const Place checkpoint = share.in(address_in(a.checkpoint, row.seat, part.head), a.checkpoint.stride[2]);
  State<F> state;
  load_state(share, checkpoint, a.plan.wide, state);
  Place slot{};
  if (a.snapshots.data) slot = share.in(address_in(a.snapshots, row.seat, 0, part.head), a.snapshots.stride[3]);
  const int64_t slot_bytes = a.snapshots.data ? a.snapshots.stride[1] * F::kBytes : 0;

  for (int64_t p = row.folded; p < end; p += kTile) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kTile), end - p));
    Asked<F> token;
    if (warp < count) ask_token(a, part, row, p + warp, token);
    __syncthreads();  // the last tile has been read
    if (warp < count) put_token(a, token, warp, tile);
    __syncthreads();
    if (F::kState != DType::f32 && p == row.folded) open(a.plan.wide, state);
    // Two loops for one: where every token settles the state, no register has to hold two of it.
    const auto walk = [&](auto always) {
      for (int t = 0; t < count; t++) {
        step(tile, t, state);
        if (p + t >= row.first) output(tile, t, state);
        const int64_t now = p + t + 1;
        const bool folds = now == row.fold_to, on_grid = a.rules.grain != 0 && (now & (a.rules.grain - 1)) == 0;
        Place to = slot;
        if (folds) to = checkpoint;
        if (always || folds || on_grid) settle(share, to, a.plan.wide, state);
        slot.at += slot_bytes;
      }
    };
    if (a.rules.grain == 1) {
      walk(std::true_type());
    } else {
      walk(std::false_type());
    }
    store_outputs(a, part, row, p, count, tile);
  }
}

template <int kElements, DType state>
auto kernel_of(bool channels) {
  return channels ? recurrent_kernel<Form<kElements, state, true>> : recurrent_kernel<Form<kElements, state, false>>;
}

template <int kElements>
void launch_recurrent(const char* op, const RecurrentArgs& args, const LaunchShape& shape, cudaStream_t stream) {
  const DType state = args.checkpoint.dtype;
  const auto kernel = state == DType::f32    ? kernel_of<kElements, DType::f32>(args.plan.channels)
                      : state == DType::bf16 ? kernel_of<kElements, DType::bf16>(args.plan.channels)
                                             : kernel_of<kElements, DType::f16>(args.plan.channels);
  launch(op, kernel, shape, stream, args);
}

}  // namespace deltaring::cuda
