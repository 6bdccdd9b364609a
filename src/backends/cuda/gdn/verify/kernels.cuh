// Two ways to bring heads to the same arithmetic: `direct`, a block a head, for batches that leave multiprocessors idle
// anyway; `pipeline`, a persistent block a multiprocessor through which heads flow, for all larger ones.
#pragma once
#include "backends/cuda/gdn/verify/consume.cuh"

namespace deltaring::cuda {

__device__ __forceinline__ const char* state_of(const VerifyParams& p, const Unit& unit, int head, int bytes) {
  return static_cast<const char*>(p.state) + ring_at(p.state_at, unit, head, 0) * bytes;
}

// Where a unit's rows come from: keys in order of distance and behind them queries; values of a head.
__device__ __forceinline__ const uint16_t* token_row(const VerifyParams& p, const Unit& unit, int row) {
  const int i = row - unit.n;
  if (i >= unit.T) return p.q + token_at(unit.token + i - unit.T, p.q_token, unit.key_head, p.q_head);
  if (i >= 0) return p.k + token_at(unit.token + i, p.k_token, unit.key_head, p.k_head);
  return p.record_k + ring_at(p.k_at, unit, unit.key_head, slot_of(p, unit, row));
}
__device__ __forceinline__ const uint16_t* value_row(const VerifyParams& p, const Unit& unit, int head, int row) {
  const int i = row - unit.n;
  if (i >= 0) return p.v + token_at(unit.token + i, p.v_token, head, p.v_head);
  return p.record_v + ring_at(p.v_at, unit, head, slot_of(p, unit, row));
}

template <class Chunk>
constexpr int kStateBytes = kHead* kHead* Chunk::kBytes;

template <class Chunk>
__global__ void __launch_bounds__(kDirectThreads) direct_kernel(const __grid_constant__ VerifyParams p) {
  extern __shared__ __align__(128) char state[];  // and behind it values, tokens, scratch
  __shared__ Segment segments[kSegments];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, b = blockIdx.x / p.Hv, head = blockIdx.x % p.Hv;
  wait_for_previous();
  launch_dependents();
  Unit unit = unit_of(p, read_row(p, b), head / p.group, head, 1);
  if (unit.seat < 0) clear_outputs(p, unit, threadIdx.x, kDirectThreads);
  if (unit.seat < 0 || (unit.T == 0 && unit.folds == 0)) return;
  const int keys = unit.keys(), rows = keys + unit.T;
  char* const values = state + kStateBytes<Chunk>;
  char* const tokens = values + keys * value_pitch(1);
  for (int i = threadIdx.x / 16; i < rows + keys; i += kDirectThreads / 16) {
    const uint16_t* from = i < rows ? token_row(p, unit, i) : value_row(p, unit, head, i - rows);
    char* to = i < rows ? tokens + i * kKeyPitch : values + (i - rows) * value_pitch(1);
    copy_async(to + threadIdx.x % 16 * 16, from + threadIdx.x % 16 * 8);
  }
  copy_commit();
  const char* from = state_of(p, unit, head, Chunk::kBytes);
  for (int i = threadIdx.x * 16; i < kStateBytes<Chunk>; i += kDirectThreads * 16) copy_async(state + i, from + i);
  copy_commit();
  cut(p, unit, segments, threadIdx.x == 0);
  auto& scratch = *reinterpret_cast<Scratch*>(tokens + unit.tokens_block());
  const bool preparer = warp == kHead / 16;
  if (preparer) prepare::settle_gates(p, unit, head, prepare::fetch_gates(p, unit, head, lane), lane, scratch);
  copy_wait<1>();
  __syncthreads();
  if (preparer) prepare_head(p, unit, segments, 0, tokens, lane, scratch);
  copy_wait<0>();
  __syncthreads();
  if (!preparer) consume_head<1, true, 1, Chunk>(p, unit, segments, 0, 0, tokens, state, warp, lane);
}

// How the launch divides its shared memory: bytes of the rings of token blocks and of state blocks, and of one scratch.
struct PipelinePlan {
  int tokens, states, scratch;
};

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

// Groups of consumers take heads in turns: one waits for its matrices while the other loads.
// Where segments of 16-bit states may be wide there is one group of more warps, whose columns need the registers.
template <class Chunk, bool kWide>
struct Consumers {
  static constexpr int kSlices = slices_of(Chunk::kBytes);
  static constexpr int kGroups = kWide && kSlices == 1 ? 1 : 2, kWarps = 8 / kGroups,
                       kTiles = kHead / (16 * kSlices * kWarps);
};

// The block's share of the work: units of a whole key head, in turns, as long as there is one for every block; what is
// left then, by single value heads.
struct Work {
  int index, whole, units;
  __device__ explicit Work(const VerifyParams& p) : index(blockIdx.x) {
    const int key_heads = p.B * (p.Hv / p.group), blocks = static_cast<int>(gridDim.x);
    whole = key_heads / blocks * blocks;
    units = whole + (key_heads - whole) * p.group;
  }
  __device__ bool done() const { return index >= units; }
  __device__ void advance() { index += static_cast<int>(gridDim.x); }
  __device__ int heads(const VerifyParams& p) const { return index < whole ? p.group : 1; }
  // The first value head, counted over all rows.
  __device__ int head(const VerifyParams& p) const {
    return index < whole ? index * p.group : whole * (p.group - 1) + index;
  }
};

// Units in flight, and states in flight. Token blocks and state blocks follow each other in rings of bytes, so short
// rows make a deep pipeline; tokens run ahead of states, because their coefficients take time.
struct UnitSlot {
  Unit unit;  // of 0 heads: there are no more
  Segment segments[kSegments];
  int at, charge;  // of its block in the ring: offset, and bytes that it holds
};
constexpr int kUnits = 4, kStates = 8;
struct Pipeline {
  Barrier known[kUnits];     // the slot is filled in
  Barrier arrived[kUnits];   // k and q are there
  Barrier ready[kUnits];     // prepared, all heads
  Barrier released[kUnits];  // consumed, all heads, and passed by every preparer
  Barrier loaded[kStates];   // v and the state are there, and known
  Barrier empty[kStates];    // consumed
  UnitSlot units[kUnits];
  int at[kStates], charge[kStates];
};

// A role's way through slots: which one, and the parity of its phase.
template <int kSlots>
struct Turn {
  int count = 0;
  __device__ int slot() const { return count % kSlots; }
  __device__ uint32_t parity() const { return count / kSlots & 1; }
};

// A ring of bytes of which blocks are taken in order and given back in order.
struct ByteRing {
  int size, head = 0, free = size;
  // Bytes that a block of `need` takes, the rest of the ring included where it does not fit in there.
  __device__ int charge(int need) {
    if (free == size) head = 0;
    return head + need > size ? size - head + need : need;
  }
  __device__ int take(int need) {
    free -= charge(need);
    const int at = head + need > size ? 0 : head;
    head = at + need;
    return at;
  }
};

// k and q of the units, as far ahead as slots and ring allow.
__device__ __forceinline__ void produce_tokens(const VerifyParams& p, char* ring, int ring_bytes, int lane,
                                               Pipeline& pipe) {
  ByteRing room{.size = ring_bytes};
  Turn<kUnits> turn, oldest;
  const auto reclaim = [&] {
    barrier_wait(pipe.released[oldest.slot()], oldest.parity());
    room.free += pipe.units[oldest.slot()].charge;
    oldest.count++;
  };
  Work work(p);
  int head = work.head(p);
  RawRow next = read_row(p, min(head / p.Hv, p.B - 1));
#pragma unroll 1
  for (; !work.done(); turn.count++) {
    const int first = head % p.Hv, slot = turn.slot();
    Unit unit = unit_of(p, next, first / p.group, first, work.heads(p));
    work.advance();
    head = work.head(p);
    next = read_row(p, min(head / p.Hv, p.B - 1));  // in flight until the next turn
    UnitSlot& s = pipe.units[slot];
    if (turn.count - oldest.count == kUnits) reclaim();
    __syncwarp();
    cut(p, unit, s.segments, lane == 0);
    const int need = unit.tokens_block(), rows = need > 0 ? unit.keys() + unit.T : 0;
#pragma unroll 1
    while (room.free < room.charge(need)) reclaim();
    __syncwarp();
    const int charge = room.charge(need), at = room.take(need);
    if (lane == 0) {
      s.unit = unit, s.at = at, s.charge = charge;
      barrier_arrive(pipe.known[slot]);
      barrier_expect(pipe.arrived[slot], rows * kHead * 2);
    }
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < rows; i += 32)
      bulk_load(ring + at + i * kKeyPitch, token_row(p, unit, i), kHead * 2, pipe.arrived[slot]);
    // The gates are few and come late to whoever prepares them.
    const int size = p.gate_dtype == DType::f32 ? 4 : 2;
    if (lane < unit.T) {
      prefetch(static_cast<const char*>(p.g) + token_at(unit.token + lane, p.g_token, unit.head, p.g_head) * size);
      prefetch(static_cast<const char*>(p.beta) +
               token_at(unit.token + lane, p.beta_token, unit.head, p.beta_head) * size);
    }
  }
  if (turn.count - oldest.count == kUnits) reclaim();
  __syncwarp();
  if (lane == 0) {
    pipe.units[turn.slot()].unit.heads = 0;
    barrier_arrive(pipe.known[turn.slot()]);
  }
}

// States and v.
__device__ __forceinline__ void produce_states(const VerifyParams& p, int bytes, char* ring, int ring_bytes, int lane,
                                               Pipeline& pipe) {
  ByteRing room{.size = ring_bytes};
  Turn<kStates> turn, oldest;
  Turn<kUnits> unit_turn;
#pragma unroll 1
  for (;; unit_turn.count++) {
    barrier_wait(pipe.known[unit_turn.slot()], unit_turn.parity());
    const Unit& unit = pipe.units[unit_turn.slot()].unit;
    if (unit.heads == 0) return;
    const int slices = slices_of(bytes), state_bytes = kHead * kHead * bytes / slices, row_bytes = 2 * kHead / slices;
    const int need = unit.state_block(bytes), keys = need > 0 ? unit.keys() : 0;
#pragma unroll 1
    for (int i = 0; i < unit.heads * slices; i++, turn.count++) {
      const int slot = turn.slot(), head = unit.head + i / slices, slice = i % slices;
#pragma unroll 1
      while (room.free < room.charge(need) || turn.count - oldest.count == kStates) {
        barrier_wait(pipe.empty[oldest.slot()], oldest.parity());
        room.free += pipe.charge[oldest.slot()];
        oldest.count++;
      }
      __syncwarp();
      const int charge = room.charge(need), at = room.take(need);
      if (lane == 0) {
        pipe.at[slot] = at, pipe.charge[slot] = charge;
        barrier_expect(pipe.loaded[slot], need > 0 ? keys * row_bytes + state_bytes : 0);
        if (need > 0) {
          const char* from = state_of(p, unit, head, bytes) + slice * state_bytes;
          bulk_load(ring + at, from, state_bytes, pipe.loaded[slot]);
        }
      }
      __syncwarp();
#pragma unroll 1
      for (int key = lane; key < keys; key += 32) {
        const uint16_t* from = value_row(p, unit, head, key) + slice * (kHead / slices);
        bulk_load(ring + at + state_bytes + key * value_pitch(slices), from, row_bytes, pipe.loaded[slot]);
      }
    }
  }
}

// A preparer takes every kPreparers-th head.
struct Task {
  Turn<kUnits> turn;
  int head;  // of the unit, or beyond it

  // Moves on to the unit that has the head. False when it is not known yet, if nobody may wait, or not there (0 heads).
  // Who waits has done with the units before: `left` of them have been told so.
  __device__ bool find(Pipeline& pipe, int lane, int* left) {
    for (;; turn.count++) {
      Barrier& known = pipe.known[turn.slot()];
      if (left) {
        __syncwarp();
        for (; *left < turn.count; ++*left) {
          if (lane == 0) barrier_arrive(pipe.released[*left % kUnits]);
        }
        barrier_wait(known, turn.parity());
      } else if (!__all_sync(~0u, barrier_test(known, turn.parity()))) {
        return false;
      }
      const int heads = pipe.units[turn.slot()].unit.heads;
      if (head < heads || heads == 0) return heads > 0;
      head -= heads;
    }
  }
};

__device__ __forceinline__ void prepare_all(const VerifyParams& p, char* tokens, int preparer, int lane,
                                            Scratch& scratch, Pipeline& pipe) {
  Task task{.head = preparer};
  prepare::Gates gates;
  bool fetched = false;
  int left = 0;
#pragma unroll 1
  while (task.find(pipe, lane, &left)) {
    const int slot = task.turn.slot();
    const UnitSlot& s = pipe.units[slot];
    const Unit& unit = s.unit;
    const int heads = unit.heads;
    if (unit.segments > 0) {
      if (!fetched) gates = prepare::fetch_gates(p, unit, unit.head + task.head, lane);
      prepare::settle_gates(p, unit, unit.head + task.head, gates, lane, scratch);
      __syncwarp();
    }
    // The next head's gates come while this one is prepared.
    Task next = task;
    next.head += kPreparers;
    fetched = next.find(pipe, lane, nullptr) && pipe.units[next.turn.slot()].unit.segments > 0;
    if (fetched) {
      const Unit& ahead = pipe.units[next.turn.slot()].unit;
      gates = prepare::fetch_gates(p, ahead, ahead.head + next.head, lane);
    }
    if (unit.segments > 0) {
      barrier_wait(pipe.arrived[slot], task.turn.parity());
      prepare_head(p, unit, s.segments, task.head, tokens + s.at, lane, scratch);
    }
    // What was written here will be overwritten by bulk copies.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    // The one head of a small unit counts for all of a whole one.
    if (lane < (heads == p.group ? 1 : p.group)) barrier_arrive(pipe.ready[slot]);
    task = next;
  }
}

// A group of consumers takes every kGroups-th slice; kStates is a multiple of that, so a state slot always is one
// group's.
template <class Chunk, bool kWide>
__device__ __forceinline__ void consume_all(const VerifyParams& p, const char* tokens, char* states, int group,
                                            int warp, int lane, Pipeline& pipe) {
  using C = Consumers<Chunk, kWide>;
  Turn<kStates> turn;
  Turn<kUnits> unit_turn;
#pragma unroll 1
  for (;; unit_turn.count++) {
    const int unit_slot = unit_turn.slot();
    const UnitSlot& s = pipe.units[unit_slot];
    barrier_wait(pipe.known[unit_slot], unit_turn.parity());
    const Unit& unit = s.unit;
    const int heads = unit.heads;
    if (heads == 0) return;
    if (unit.seat < 0) clear_outputs(p, unit, threadIdx.x, 32 * C::kGroups * C::kWarps);
#pragma unroll 1
    for (int i = 0; i < heads * C::kSlices; i++, turn.count++) {
      if (turn.count % C::kGroups != group) continue;
      const int slot = turn.slot();
      barrier_wait(pipe.ready[unit_slot], unit_turn.parity());
      barrier_wait(pipe.loaded[slot], turn.parity());
      if (unit.segments > 0) {
        consume_head<C::kTiles, kWide, C::kSlices, Chunk>(p, unit, s.segments, i / C::kSlices, i % C::kSlices,
                                                          tokens + s.at, states + pipe.at[slot], warp, lane);
        // A folded state was written here, and a bulk copy will be.
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(pipe.empty[slot]);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(pipe.released[unit_slot]);
  }
}

#endif

template <class Chunk, bool kWide>
__global__ void __launch_bounds__(kPipelineThreads, 1)
    pipeline_kernel(const __grid_constant__ VerifyParams p, const PipelinePlan plan) {
#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
  extern __shared__ __align__(128) char tokens[];  // the rings, then the scratch
  using C = Consumers<Chunk, kWide>;
  __shared__ Pipeline pipe;
  static_assert(sizeof(Pipeline) <= kPipelineStatic);
  char* const states = tokens + plan.tokens;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x < kUnits) {
    barrier_init(pipe.known[threadIdx.x], 1), barrier_init(pipe.arrived[threadIdx.x], 1);
    barrier_init(pipe.ready[threadIdx.x], p.group),
        barrier_init(pipe.released[threadIdx.x], C::kGroups * C::kWarps + kPreparers);
  }
  if (threadIdx.x < kStates) {
    barrier_init(pipe.loaded[threadIdx.x], 1), barrier_init(pipe.empty[threadIdx.x], C::kWarps);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
  wait_for_previous();
  launch_dependents();
  constexpr int kAll = C::kGroups * C::kWarps;
  if (warp < kAll) {
    consume_all<Chunk, kWide>(p, tokens, states, warp / C::kWarps, warp % C::kWarps, lane, pipe);
  } else if (warp < kAll + kPreparers) {
    auto& scratch = *reinterpret_cast<Scratch*>(states + plan.states + (warp - kAll) * plan.scratch);
    prepare_all(p, tokens, warp - kAll, lane, scratch, pipe);
  } else if (warp == kAll + kPreparers) {
    produce_tokens(p, tokens, plan.tokens, lane, pipe);
  } else {
    produce_states(p, Chunk::kBytes, states, plan.states, lane, pipe);
  }
#endif
}

}  // namespace deltaring::cuda
