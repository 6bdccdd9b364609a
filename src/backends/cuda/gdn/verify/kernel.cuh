// The verify kernel: a block takes one or a few value heads of one key head of a row. Its warps share tokens and what
// was made of them; each brings and computes its own rows of the states, the next ones as soon as the last have been
// read. Several blocks of a multiprocessor hide each other's waits.
#pragma once
#include "backends/cuda/gdn/verify/consume.cuh"

namespace deltaring::cuda {

// The outputs of a row without a seat.
__device__ __forceinline__ void clear_outputs(const VerifyParams& p, const Unit& unit) {
  const int words = kHead * static_cast<int>(p.out_dtype == DType::f32 ? 4 : 2) / 4;  // of a row
#pragma unroll 1
  for (int64_t i = threadIdx.x; i < int64_t{unit.heads} * unit.T * words; i += kVerifyThreads) {
    const int token = static_cast<int>(i / words % unit.T), head = static_cast<int>(i / words / unit.T);
    const int64_t at = token_at(unit.token + token, p.out_token, unit.head + head, p.out_head);
    static_cast<uint32_t*>(p.out)[at * words / kHead + i % words] = 0;
  }
}

// By one thread: the block's next part of its row. Part first_part - 1 is the first one too, ahead of its time: what is
// made of its row stands if the row is the same when its time comes.
template <class Quad>
__device__ __forceinline__ void begin_part(const VerifyParams& p, Header& header) {
  const int part = header.part++;
  const Share share = share_of(p, blockIdx.x, blockIdx.y);
  if (part <= p.first_part) {
    const RawRow row = read_row(p, blockIdx.z, share.turn);
    if (header.known && row == header.raw) return;
    header.raw = row, header.known = true;
    header.row = relative(p, row);
  }
  const Unit unit = unit_of(p, header.row, max(part, p.first_part), share.key_head, share.head, share.heads);
  header.values = {.ring = p.record_v + ring_at(p.v_at, unit, unit.head, 0),
                   .tokens = p.v + token_at(unit.token - unit.n, p.v_token, unit.head, p.v_head),
                   .records = unit.records,
                   .slot = unit.slot,
                   .opening = unit.opening,
                   .heads = unit.heads};
  header.state = static_cast<char*>(p.state) + ring_at(p.state_at, unit, unit.head, 0) * Quad::kBytes;
  header.out = static_cast<char*>(p.out) +
               token_at(unit.token, p.out_token, unit.head, p.out_head) * (p.out_dtype == DType::f32 ? 4 : 2);
  header.unit = unit;
}

// A unit's keys, records and tokens, and behind them its queries, a row after the other, by all threads; they are there
// when their group of copies is.
__device__ __forceinline__ void fetch_tokens(const VerifyParams& p, const Header& header, uint32_t room) {
  const int records = header.unit.records, n = header.unit.n, T = header.unit.T, slot = header.unit.slot;
  const int key_head = header.unit.key_head, token = header.unit.token;
  constexpr int kStep = kVerifyThreads / 16;  // rows at a time
  const int piece = threadIdx.x % 16 * 8;
  int row = threadIdx.x / 16;
  uint32_t to = room + row * kKeyPitch + piece * 2;
  const auto copy = [&](int end, const auto& from) {
#pragma unroll 1
    for (; row < end; row += kStep, to += kStep * kKeyPitch) copy_async(to, from(row) + piece);
  };
  const uint16_t* const ring = p.record_k + (header.unit.seat * p.k_at.outer + wide_product(key_head, p.k_at.head));
  copy(records, [&](int key) { return ring + wide_product((slot + key) & (p.R - 1), p.k_at.row); });
  copy(n + T, [&](int key) { return p.k + token_at(token + key - n, p.k_token, key_head, p.k_head); });
  copy(n + 2 * T, [&](int i) { return p.q + token_at(token + i - n - T, p.q_token, key_head, p.q_head); });
}

// The warp's tile i: its rows of a head, one tile after the other, then of the next.
template <class Quad>
struct TileOf {
  int head, row;  // of the unit; of the head
  __device__ __forceinline__ TileOf(int i, int warp)
      : head(i / kTiles<Quad>), row(warp * (kHead / kWarps) + i % kTiles<Quad> * kTileRows<Quad>) {}
};

// Everything of a unit. Unless it has been cut, a thread of the last warp, which has least to prepare, does it while
// tokens are on their way.
template <class Quad, bool kWide>
__device__ __forceinline__ void run_unit(const VerifyParams& p, Header& header, uint32_t tile, char* values, int warp,
                                         int lane) {
  const Unit& unit = header.unit;
  char* const room = values + kWarps * p.values;
  uint32_t own_values = shared_address(values + warp * p.values);
  // What is needed first is asked for first.
  fetch_tokens(p, header, shared_address(room));
  copy_commit();
  prepare::RawGate raw{};
  if (warp < unit.heads) raw = prepare::fetch_gate(p, unit, unit.head + warp, lane);
  const auto fetch_state = [&](const TileOf<Quad>& at) {
    const int64_t from = wide_product(at.head, p.state_at.head) + at.row * kHead;
    fetch_tile<Quad>(tile, header.state + from * Quad::kBytes, lane);
  };
  const auto fetch_v = [&](const Values& from, const TileOf<Quad>& at) {
    fetch_values<Quad>(p, from, at.head, 0, from.opening, at.row, own_values, lane);
  };
  fetch_v(load_whole(header.values), {0, warp});
  copy_commit();
  fetch_state({0, warp});
  copy_commit();
  if (warp == kWarps - 1 && lane == 0 && unit.segments == 0) cut(p, header.unit, header.segments);
  copy_wait<2>();
  __syncthreads();  // the tokens are there, and the segments
  const unsigned idle = max(kWarps - unit.heads, 0);
  unsigned job = 0;
#pragma unroll 1
  for (int i = 0; i < unit.segments; i++)
    prepare::multiply(p, load_whole(header.segments[i]), room, room + unit.norms(), warp, lane, idle, job);
#pragma unroll 1
  for (int begin = 0; begin < unit.heads; begin += unit.batch) {
    const int heads = min(unit.batch, unit.heads - begin), own = unit.head + begin + warp;
    prepare::Gate gate{}, behind{};  // of keys `lane` and 32 + lane, which are rare
    if (warp < heads) {
      if (begin > 0) raw = prepare::fetch_gate(p, unit, own, lane);
      gate = prepare::settle_gate(p, unit, own, lane, raw, p.append);
      if (unit.keys() > 32) {
        raw = prepare::fetch_gate(p, unit, own, 32 + lane);
        behind = prepare::settle_gate(p, unit, own, 32 + lane, raw, p.append);
      }
    }
    if (unit.crowded) copy_wait<1>();  // v, whose place is taken
    __syncthreads();                   // the dot products are there, and the heads before have been consumed
    if (warp < heads) {
      char* const scratches = unit.crowded ? values : room + unit.scratches(heads);
      auto& scratch = *reinterpret_cast<Scratch*>(scratches + warp * unit.scratch);
      char* const coefficients = room + unit.coefficients + warp * unit.stride;
#pragma unroll 1
      for (int i = 0; i < unit.segments; i++) {
        const Segment s = load_whole(header.segments[i]);
        prepare::prepare_segment<kWide ? kKeyTiles : 3>(s, room, room + unit.norms(),
                                                        prepare::gate_of(unit, s.first, gate, behind, lane), lane,
                                                        scratch, coefficients + s.block);
      }
    }
    if (p.append && warp == kWarps - 1 && begin == 0 && unit.head == unit.key_head * p.group)
      prepare::append_keys(p, unit, room, lane);
    __syncthreads();
    const int end = (begin + heads) * kTiles<Quad>;
    if (unit.crowded) fetch_v(load_whole(header.values), {begin * kTiles<Quad>, warp}), copy_commit();
#pragma unroll 1
    for (int i = begin * kTiles<Quad>; i < end; i++) {
      const TileOf<Quad> at(i, warp);
      // Else every address that is made of them has a register of its own, all through the unit.
      if constexpr (kWide) {
        asm volatile("" : "+r"(lane));
      } else {
        asm volatile("" : "+r"(tile), "+r"(own_values));
      }
      const uint32_t here = shared_address(room), block = unit.coefficients + (at.head - begin) * unit.stride;
      copy_wait<0>();
      consume_tile<Quad, kWide>(p, header, at.head, at.row, here, here + block, tile, own_values, lane, [&] {
        __syncwarp();
        const Values from = load_whole(header.values);
        const bool fetched_late = unit.crowded && i + 1 == end;
        if (i + 1 < from.heads * kTiles<Quad>) {
          const TileOf<Quad> next(i + 1, warp);
          fetch_state(next);
          if (!fetched_late) fetch_v(from, next);
        }
        copy_commit();
      });
    }
  }
}

__device__ __forceinline__ unsigned block_number() {
  return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

// From here on the kernel before has ended, and the next one may begin.
__device__ __forceinline__ void enter() {
  wait_for_previous();
  launch_dependents();
}

template <class Quad, bool kWide>
__global__ void __launch_bounds__(kVerifyThreads, resident_blocks(kWide))
    verify_kernel(const __grid_constant__ VerifyParams p) {
  // The warps' tiles, what the block knows of its work, the warps' rows of v, the room.
  extern __shared__ __align__(1024) char tiles[];
  auto& header = *reinterpret_cast<Header*>(tiles + kWarps * kTileBytes);
  char* const values = tiles + kWarps * kTileBytes + kHeaderBytes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Blocks that may be there before the kernel before has ended begin with what it may not have written yet: if it does
  // not, as from layer to layer, only the row is read again, and else instructions and arguments are near.
  const bool early = block_number() < p.early;
  if (threadIdx.x == 0) header.part = p.first_part - early, header.known = false;
  if (!early) enter();
  for (;;) {
    if (threadIdx.x == 0) begin_part<Quad>(p, header);
    __syncthreads();
    if (header.part == p.first_part) {
      if (threadIdx.x == 0) cut(p, header.unit, header.segments);
      enter();
      __syncthreads();
      continue;
    }
    if (header.unit.opening > 0) {
      run_unit<Quad, kWide>(p, header, shared_address(tiles + warp * kTileBytes), values, warp, lane);
    } else if (header.unit.seat < 0) {
      clear_outputs(p, header.unit);
    }
    if (header.part == p.parts) break;
    __syncthreads();  // the next part overwrites what this one has read
  }
}

}  // namespace deltaring::cuda
