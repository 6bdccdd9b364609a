// Seats and pages: every byte that outlives a step, in one arena. A seat is one request's place in all pools.
#pragma once
#include <cstdint>
#include <vector>

#include "base/arena.h"
#include "base/view.h"
#include "ops/attention.h"
#include "ops/gdn.h"
#include "state/plan.h"

namespace deltaring {

class StatePool {
 public:
  // Throws as plan_state, and Error(out_of_memory) when the arena cannot be had.
  StatePool(const StateShape& shape, const StateOptions& options);

  // A seat with a zero checkpoint, no KV and cursor {0, 0}; -1 when all are taken.
  int32_t allocate();
  // Gives the seat and its pages back. Throws Error when it is not taken.
  void free(int32_t seat);
  // Makes room for positions [0, tokens); false when no page is left, and then nothing has changed.
  bool reserve(int32_t seat, int64_t tokens);
  // Forgets the accepted tokens from pos on. Throws Error(invalid_argument) unless folded <= pos <= cursor's pos.
  void rewind(int32_t seat, int64_t pos);

  // Throws Error when the seat is not taken, as do reserve and rewind.
  Cursor& cursor(int32_t seat) { return check_taken(seat), cursors_[seat]; }
  int64_t free_seats() const { return static_cast<int64_t>(free_seats_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_pages_.size()); }

  GdnState gdn(int64_t layer) const;       // layer counts GDN layers only
  View<3> conv_ring(int64_t layer) const;  // [seats, Rc, C] f32
  KvPages kv(int64_t layer) const;         // layer counts attention layers, the target's first

  const StateShape& shape() const { return shape_; }
  const StateOptions& options() const { return options_; }
  const StatePlan& plan() const { return plan_; }
  // F of the grid, 0 without one: the grain argument of the gdn ops.
  int64_t grain() const { return options_.ring.policy == FoldPolicy::grid ? options_.ring.F : 0; }

 private:
  void check_taken(int32_t seat) const;
  template <int N>
  View<N> take(DType dtype, std::array<int64_t, N> shape);

  StateShape shape_;
  StateOptions options_;
  StatePlan plan_;
  Arena arena_;
  View<5> checkpoint_;                            // [layers, seats, Hv, V, K]
  View<5> record_k_, record_v_;                   // [layers, seats, Hk, R, K], [layers, seats, Hv, R, V]
  View<4> record_g_, record_beta_;                // [layers, seats, Hv, R]
  View<4> conv_;                                  // [layers, seats, Rc, C]
  View<6> kv_;                                    // [layers, 2, pages, Hkv, page_rows, D]
  std::vector<Cursor> cursors_;                   // [seats]
  std::vector<uint8_t> taken_;                    // [seats]
  std::vector<int64_t> used_pages_;               // [seats] pages at the front of the seat's table row
  std::vector<int32_t> table_;                    // [seats, pages]
  std::vector<int32_t> free_seats_, free_pages_;  // stacks, lowest on top
};

}  // namespace deltaring
