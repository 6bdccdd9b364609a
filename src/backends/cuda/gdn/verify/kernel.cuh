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

// By one thread: the block's next part of its row.
template <class Quad>
__device__ __forceinline__ void begin_part(const VerifyParams& p, Header& header) {
  const int part = header.part++;
  unsigned y;  // from the special register each time: else it has one of its own, from beginning to end
  asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(y));
  const Share share = share_of(p, blockIdx.x, y);
  if (part == p.first_part) {
    header.raw = read_row(p, blockIdx.z, share.turn);
    header.row = relative(p, header.raw);
  }
  const Unit unit = unit_of(p, header.row, part, share.key_head, share.head, share.heads);
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
class TokenRows {
 public:
  __device__ __forceinline__ TokenRows(const VerifyParams& p, const Unit& unit, uint32_t room)
      : p_(p),
        records_(unit.records),
        keys_(unit.keys()),
        all_(keys_ + unit.T),
        slot_(unit.slot),
        head_(unit.key_head),
        seat_(unit.seat),
        first_(unit.token - unit.n),
        row_(threadIdx.x / 16),
        to_(room + row_ * kKeyPitch + threadIdx.x % 16 * 16) {}

  // Finds the first rows. Reads nothing, so that it may come before the kernel before has ended.
  __device__ __forceinline__ void find() {
#pragma unroll
    for (int i = 0; i < kFound; i++) {
      const int row = row_ + i * kStep;
      found_[i] = row < records_ ? record(ring(), row) : row < keys_ ? key(row) : query(row);
    }
  }
  // Asks for those.
  __device__ __forceinline__ void fetch_found() {
#pragma unroll
    for (int i = 0; i < kFound; i++) {
      if (row_ < all_) copy_async(to_, found_[i]);
      next();
    }
  }
  // Asks for all others. A loop a source takes fewer instructions than a choice a row.
  __device__ __forceinline__ void fetch() {
    const uint16_t* const from = ring();
#pragma unroll 1
    for (; row_ < records_; next()) copy_async(to_, record(from, row_));
#pragma unroll 1
    for (; row_ < keys_; next()) copy_async(to_, key(row_));
#pragma unroll 1
    for (; row_ < all_; next()) copy_async(to_, query(row_));
  }

 private:
  static constexpr int kStep = kVerifyThreads / 16, kFound = 2;  // rows at a time; and times

  __device__ __forceinline__ void next() { row_ += kStep, to_ += kStep * kKeyPitch; }
  __device__ static int piece() { return threadIdx.x % 16 * 8; }
  __device__ __forceinline__ const uint16_t* ring() const {
    return p_.record_k + (seat_ * p_.k_at.outer + wide_product(head_, p_.k_at.head)) + piece();
  }
  __device__ __forceinline__ const uint16_t* record(const uint16_t* ring, int row) const {
    return ring + wide_product((slot_ + row) & (p_.R - 1), p_.k_at.row);
  }
  __device__ __forceinline__ const uint16_t* key(int row) const {
    return p_.k + token_at(first_ + row, p_.k_token, head_, p_.k_head) + piece();
  }
  __device__ __forceinline__ const uint16_t* query(int row) const {
    return p_.q + token_at(first_ + row - (all_ - keys_), p_.q_token, head_, p_.q_head) + piece();
  }

  const VerifyParams& p_;
  const int records_, keys_, all_;        // rows: keys come first, of them records
  const int slot_, head_, seat_, first_;  // of the first record; key head; seat; token, as if row 0 were one
  int row_;
  uint32_t to_;
  const uint16_t* found_[kFound];
};

// Is a row still what it was read as, ahead of its time? A lane looks at a word of it; asked for early, it is known
// late.
class Recheck {
 public:
  Recheck() = default;
  // Of a row that has a seat.
  __device__ __forceinline__ Recheck(const VerifyParams& p, const RawRow& row, int lane) {
    static_assert(offsetof(RawRow, seat) == 8 && offsetof(RawRow, index) == 12 && offsetof(RawRow, first) == 16 &&
                  offsetof(RawRow, folded) == 24 && offsetof(RawRow, fold_to) == 32);
    const int b = row.index;
    if (lane < 2) {
      if (p.start) at_ = p.start + b + lane;
    } else if (lane == 2) {
      at_ = p.seat + b;
    } else if (lane == 3) {
      if (p.order) at_ = p.order + row.turn;
    } else if (lane < 10) {
      const int64_t* const array = lane < 6 ? p.first : lane < 8 ? p.folded : p.fold_to;
      at_ = reinterpret_cast<const int32_t*>(array + b) + lane % 2;
    }
    if (at_) was_ = reinterpret_cast<const int32_t*>(&row)[lane];
  }
  __device__ __forceinline__ void ask() { is_ = at_ ? load_latest(at_) : was_; }
  __device__ __forceinline__ bool stands() const { return __all_sync(~0u, is_ == was_); }

 private:
  const int32_t* at_ = nullptr;
  int32_t was_ = 0, is_ = 0;
};

// From here on the kernel before has ended, and the next one may begin.
__device__ __forceinline__ void enter() {
  wait_for_previous();
  launch_dependents();
}

// The warp's tile i: its rows of a head, one tile after the other, then of the next.
template <class Quad>
struct TileOf {
  int head, row;  // of the unit; of the head
  __device__ __forceinline__ TileOf(int i, int warp)
      : head(i / kTiles<Quad>), row(warp * (kHead / kWarps) + i % kTiles<Quad> * kTileRows<Quad>) {}
};

// Asks for a tile of the unit's states.
template <class Quad>
__device__ __forceinline__ void fetch_state(const VerifyParams& p, const Header& header, const TileOf<Quad>& at,
                                            uint32_t tile, int lane) {
  const int64_t from = wide_product(at.head, p.state_at.head) + at.row * kHead;
  fetch_tile<Quad>(tile, header.state + from * Quad::kBytes, lane);
}

// Everything of a unit; its tokens, gates, v and first state are asked for in the order in which they are needed. One
// that is begun ahead of its time, with the kernel before at work, finds the way to the first of them meanwhile, and
// loads are all that is done before it is clear that its row is still the same: false if not.
template <class Quad, bool kWide>
__device__ __forceinline__ bool run_unit(const VerifyParams& p, Header& header, uint32_t tile, char* values, int warp,
                                         int lane, bool ahead) {
  const Unit& unit = header.unit;
  char* const room = values + kWarps * p.values;
  uint32_t own_values = shared_address(values + warp * p.values);
  // Wide units find gates, and are cut, behind their first loads: it is long, and few of their blocks are there early.
  constexpr bool kFindAll = !kWide;
  const bool prepares = warp < unit.heads, checks = warp == kWarps - 2;
  const auto cut_by_last = [&] {  // who has least to prepare
    if (warp == kWarps - 1 && lane == 0) cut(p, header.unit, header.segments);
  };
  TokenRows tokens(p, unit, shared_address(room));
  prepare::GateAt gates;
  if (kFindAll && prepares) gates = {p, unit, unit.head + warp, lane};
  Recheck recheck;
  if (ahead) {
    if (checks) recheck = Recheck(p, header.raw, lane);
    tokens.find();
    if (kFindAll) cut_by_last();
    enter();
    tokens.fetch_found();
  }
  tokens.fetch();
  copy_commit();
  prepare::RawGate raw{};
  if (prepares) {
    if (!kFindAll) gates = {p, unit, unit.head + warp, lane};
    raw = prepare::fetch_gate(p, gates, unit.head + warp);
  }
  if (ahead && checks) recheck.ask();
  const auto fetch_v = [&](const Values& from, const TileOf<Quad>& at) {
    fetch_values<Quad>(p, from, at.head, 0, from.opening, at.row, own_values, lane);
  };
  fetch_v(load_whole(header.values), {0, warp});
  copy_commit();
  fetch_state<Quad>(p, header, {0, warp}, tile, lane);
  copy_commit();
  if (!(ahead && kFindAll)) cut_by_last();
  if (ahead && checks) {
    const bool stands = recheck.stands();
    if (lane == 0) header.stands = stands;
  }
  copy_wait<2>();
  __syncthreads();  // the tokens are there, the segments, and what the row is now
  if (ahead && !header.stands) {
    copy_wait<0>();
    return false;
  }
  // Else what the loads have made of `lane` has registers of its own, all through the unit.
  if constexpr (!kWide) asm volatile("" : "+r"(lane));
  const prepare::Turns turns{static_cast<unsigned>(max(kWarps - unit.heads, 0))};
  if (unsigned job = 0; turns.first(warp) < unit.jobs) {
#pragma unroll 1
    for (int i = 0; i < unit.segments; i++)
      prepare::multiply(p, load_whole(header.segments[i]), room, room + unit.norms(), warp, lane, turns, job);
  }
#pragma unroll 1
  for (int begin = 0; begin < unit.heads; begin += unit.batch) {
    const int heads = min(unit.batch, unit.heads - begin), own = unit.head + begin + warp;
    prepare::Gate gate{}, behind{};  // of keys `lane` and 32 + lane, which are rare
    if (warp < heads) {
      if (begin > 0) raw = prepare::fetch_gate(p, {p, unit, own, lane}, own);
      gate = prepare::settle_gate(p, unit, own, lane, raw, p.append);
      if (unit.keys() > 32) {
        raw = prepare::fetch_gate(p, {p, unit, own, 32 + lane}, own);
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
          fetch_state<Quad>(p, header, next, tile, lane);
          if (!fetched_late) fetch_v(from, next);
        }
        copy_commit();
      });
    }
  }
  return true;
}

__device__ __forceinline__ unsigned block_number() {
  return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

template <class Quad, bool kWide>
__global__ void __launch_bounds__(kVerifyThreads, resident_blocks(kWide))
    verify_kernel(const __grid_constant__ VerifyParams p) {
  // The warps' tiles, what the block knows of its work, the warps' rows of v, the room.
  extern __shared__ __align__(1024) char tiles[];
  auto& header = *reinterpret_cast<Header*>(tiles + kWarps * kTileBytes);
  char* const values = tiles + kWarps * kTileBytes + kHeaderBytes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t tile = shared_address(tiles + warp * kTileBytes);
  // Blocks that may be there before the kernel before has ended begin with a row that it may not have written yet. If
  // it does not, as from layer to layer, what was made of the row stands.
  bool ahead = block_number() < p.early;
  if (threadIdx.x == 0) header.part = p.first_part;
  if (!ahead) enter();
  for (;; ahead = false) {
    if (threadIdx.x == 0) begin_part<Quad>(p, header);
    __syncthreads();
    bool stands = !ahead;
    if (header.unit.opening > 0) {
      stands = run_unit<Quad, kWide>(p, header, tile, values, warp, lane, ahead);
    } else if (ahead) {
      enter();
    } else if (header.unit.seat < 0) {
      clear_outputs(p, header.unit);
    }
    if (stands && header.part == p.parts) break;
    __syncthreads();                                              // the next part overwrites what this one has read
    if (threadIdx.x == 0 && !stands) header.part = p.first_part;  // all of it again, in time
  }
}

}  // namespace deltaring::cuda
