// How much memory a set of requests needs. One function sizes what the pool allocates and what the tools print.
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "ops/cursor.h"

namespace deltaring {

// How the state of rejected tokens is undone.
enum class StateRollback : uint8_t {
  replay,    // a checkpoint and a ring of records; rejected records are never read
  snapshot,  // one whole state per window token beside the live one, the accepted one is copied back: the baseline
};

// What one request's state looks like: counts of layers, heads and channels, no model names.
struct StateShape {
  int64_t gdn_layers = 0, Hk = 0, Hv = 0, K = 0, V = 0;
  int64_t G = 1;  // gate channels a value head: 1, or K
  int64_t conv_channels = 0, taps = 0;
  int64_t kv_layers = 0, Hkv = 0, D = 0;                 // full attention layers, an MTP head's included
  int64_t draft_layers = 0, draft_Hkv = 0, draft_D = 0;  // of a drafter with heads of its own: in the same pages
};

struct StateOptions {
  int64_t seats = 1;
  int64_t kv_tokens = 0;   // positions all seats together can hold
  int64_t page_rows = 64;  // positions a KV page, a power of two
  RingOptions ring;        // under snapshot T alone counts
  StateRollback rollback = StateRollback::replay;
  DType checkpoint = DType::f32;
  DType record = DType::f32;
  DType kv = DType::f32;
};

// Bytes. The per-seat figures are for all layers of one seat.
struct StatePlan {
  int64_t checkpoint_per_seat = 0;
  int64_t records_per_seat = 0;    // 0 under snapshot
  int64_t snapshots_per_seat = 0;  // T states under snapshot, none for T = 1
  int64_t conv_per_seat = 0;
  int64_t kv_per_page = 0;
  int64_t pages = 0;
  int64_t conv_rows = 0;  // Rc
  int64_t total = 0;      // what the pool allocates, alignment included

  int64_t state_per_seat() const { return checkpoint_per_seat + records_per_seat + snapshots_per_seat + conv_per_seat; }
};

// Throws Error(invalid_argument) for rings that cannot work (check_ring) and for sizes that make no sense, and
// Error(out_of_memory) for a plan that no int64 holds.
StatePlan plan_state(const StateShape& shape, const StateOptions& options);

// The same requests under another rollback, to compare with.
StatePlan plan_state_as(StateRollback rollback, const StateShape& shape, StateOptions options);

}  // namespace deltaring
