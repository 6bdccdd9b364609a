// The verify kernel: a block takes one or a few value heads of one key head of a row. Its warps share tokens and what
// was made of them; each brings and computes its own rows of the states, the next ones as soon as the last have been
// read. Several blocks of a multiprocessor hide each other's waits.
#pragma once
#include "backends/cuda/gdn/verify/consume.cuh"

namespace deltaring::cuda {

// The outputs of a row without a seat.
__device__ __forceinline__ void clear_outputs(const VerifyParams& p, const Unit& unit) {
#pragma unroll 1
  for (int64_t i = threadIdx.x; i < int64_t{unit.heads} * unit.T * (kHead / 2); i += kVerifyThreads) {
    const int token = static_cast<int>(i / (kHead / 2) % unit.T), head = static_cast<int>(i / (kHead / 2) / unit.T);
    const int64_t at = token_at(unit.token + token, p.out_token, unit.head + head, p.out_head);
    consume::store_output(p, at + 2 * (i % (kHead / 2)), 0, 0);
  }
}

// Everything of a unit that has been cut. Shared memory: the warps' tiles; the header; the unit's room.
template <class Quad, bool kWide>
__device__ __forceinline__ void run_unit(const VerifyParams& p, const Unit& unit, const Segment* segments, char* tiles,
                                         char* tokens) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // What is needed first is asked for first.
  prepare::Gates gates{};
  if (warp < min(unit.batch, unit.heads)) gates = prepare::fetch_gates(p, unit, unit.head + warp, lane);
  for (int i = threadIdx.x / 16; i < unit.keys() + unit.T; i += kVerifyThreads / 16)
    copy_async(shared_address(tokens + i * kKeyPitch + threadIdx.x % 16 * 16),
               token_row(p, unit, i) + threadIdx.x % 16 * 8);
  copy_commit();
  const uint32_t tile = shared_address(tiles + warp * kTileBytes);
  // Tiles of the warp: those of a head, then those of the next.
  const auto head_of = [](int i) { return i / kTiles<Quad>; };
  const auto row_of = [warp](int i) { return warp * (kHead / kWarps) + i % kTiles<Quad> * kTileRows<Quad>; };
  const auto state = [&](int i) {
    return static_cast<const char*>(p.state) +
           ring_at(p.state_at, unit, unit.head + head_of(i), row_of(i)) * Quad::kBytes;
  };
  const int count = unit.heads * kTiles<Quad>;
  TileValues<Quad> v;
  const auto fetch = [&](int i) {
    if (i < count) {
      fetch_tile<Quad>(tile, state(i), lane);
      v.fetch(p, unit, unit.head + head_of(i), segments[0], row_of(i) + lane / 4 * 2, lane % 4);
    }
    copy_commit();
  };
  fetch(0);
  copy_wait<1>();
  __syncthreads();  // the tokens are there
  int job = 0;
#pragma unroll 1
  for (int i = 0; i < unit.segments; i++) prepare::multiply(p, segments[i], unit, tokens, warp, lane, job);
  if (p.append && warp == kWarps - 1 && unit.head % p.group == 0) prepare::append_keys(p, unit, tokens, lane);
#pragma unroll 1
  for (int begin = 0; begin < unit.heads; begin += unit.batch) {
    const int heads = min(unit.batch, unit.heads - begin), own = unit.head + begin + warp;
    if (warp < heads) {
      if (begin > 0) gates = prepare::fetch_gates(p, unit, own, lane);
      prepare::settle_gates(p, unit, own, gates, lane);
    }
    __syncthreads();  // the dot products are there, and the heads before have been consumed
    if (warp < heads) {
      auto& scratch = *reinterpret_cast<Scratch*>(tokens + unit.scratches(heads) + warp * p.scratch);
      char* const coefficients = tokens + unit.coefficients + warp * unit.stride;
#pragma unroll 1
      for (int i = 0; i < unit.segments; i++) {
        const Segment& s = segments[i];
        prepare::prepare_segment(s, unit, tokens, gates, lane, scratch, coefficients + s.block);
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = begin * kTiles<Quad>; i < (begin + heads) * kTiles<Quad>; i++) {
      const char* coefficients = tokens + unit.coefficients + (head_of(i) - begin) * unit.stride;
      consume_tile<Quad, kWide>(p, unit, segments, unit.head + head_of(i), row_of(i), tokens, coefficients, tile, lane,
                                v, [&] {
                                  __syncwarp();
                                  fetch(i + 1);
                                });
    }
  }
}

template <class Quad, bool kWide>
__global__ void __launch_bounds__(kVerifyThreads, resident_blocks(kWide))
    verify_kernel(const __grid_constant__ VerifyParams p) {
  extern __shared__ __align__(1024) char tiles[];
  auto& header = *reinterpret_cast<Header*>(tiles + kWarps * kTileBytes);
  char* const tokens = tiles + kWarps * kTileBytes + kHeaderBytes;
  wait_for_previous();
  launch_dependents();
  const int shares = (p.group + p.heads - 1) / p.heads, index = blockIdx.x / shares, Hk = p.Hv / p.group;
  const int key_head = index % Hk, first = blockIdx.x % shares * p.heads;
  if (threadIdx.x == 0) header.row = relative(p, read_row(p, index / Hk));
#pragma unroll 1
  for (int part = p.first_part; part < p.parts; part++) {
    if (threadIdx.x == 0) {
      Unit unit = unit_of(p, header.row, part, key_head, key_head * p.group + first, min(p.heads, p.group - first));
      cut(p, unit, header.segments);
      header.unit = unit;
    }
    __syncthreads();
    const Unit& unit = header.unit;
    if (unit.seat < 0) {
      clear_outputs(p, unit);
    } else if (unit.T > 0 || unit.folds > 0) {
      run_unit<Quad, kWide>(p, unit, header.segments, tiles, tokens);
    }
    if (part + 1 < p.parts) __syncthreads();  // the next part overwrites what this one has read
  }
}

}  // namespace deltaring::cuda
