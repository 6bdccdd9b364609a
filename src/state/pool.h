// Seats and pages: every byte that outlives a step, in one arena. A seat is one request's place in all pools.
//
// A seat is free, owned by one request, or cached: the read-only state of a prefix, shared by reference and copied
// before somebody writes. What a copy takes along is the seat as it stands, records included, so it holds at any length
// and rounds nothing. KV pages that no rewind can reach any more (before the page of `folded`) are shared between
// copies.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/view.h"
#include "ops/attention.h"
#include "ops/seats.h"
#include "state/plan.h"
#include "state/side_state.h"

namespace deltaring {

enum class SeatState : uint8_t { free, owned, cached };

class StatePool {
 public:
  // Throws as plan_state, and Error(out_of_memory) when the arena cannot be had.
  StatePool(const StateShape& shape, const StateOptions& options);

  // From now on `side` follows the cursors of all seats. It outlives the pool; attach before the first allocate.
  void attach(SideState& side);
  void detach(SideState& side);

  // A seat with a zero checkpoint, no KV and cursor {0, 0}; -1 when none is free.
  int32_t allocate();
  // Gives an owned seat and its pages back.
  void free(int32_t seat);
  // Makes room for positions [0, tokens) of an owned seat; false when no page is left, and then nothing has changed.
  bool reserve(int32_t seat, int64_t tokens);
  // The cursor of an owned seat moves as deltaring::commit says, and all side state with it. Under snapshot the state
  // is plain: folded follows pos, whatever fold_to says.
  void commit(int32_t seat, int64_t fold_to, int64_t acc);
  // Forgets the accepted tokens of an owned seat from pos on. Throws Error(out_of_reach), which changes nothing, unless
  // folded <= pos <= cursor's pos: then the tokens have to be prefilled again.
  void rewind(int32_t seat, int64_t pos);

  // An owned seat with the state of `seat`, owned or cached; -1, and nothing has changed, when seats or pages are
  // short.
  int32_t copy(int32_t seat);
  // The same as a cached seat with one reference. `tokens` is what the caller takes the state for: Error when the
  // cursor's pos is another.
  int32_t snapshot(int32_t seat, int64_t tokens);
  void share(int32_t cached);    // one reference more
  void release(int32_t cached);  // one less; the last one frees the seat
  // Copy on write: gives a reference back for an owned seat with that state, which is the cached seat itself when the
  // reference was the last. -1, and nothing has changed, when seats or pages are short.
  int32_t own(int32_t cached);

  // The seat's live state in a form of its own: a header (magic, version, shape, dtypes, cursor) and a checksum.
  std::vector<std::byte> export_seat(int32_t seat);
  // An owned seat with an exported state; -1 when seats or pages are short. The pool may have another number of seats,
  // another ring length, another page size. Throws Error(corrupt) for bytes that are damaged, Error(unsupported) for
  // another version, shape, dtype or grid; nothing has changed then.
  int32_t import_seat(std::span<const std::byte> file);

  Cursor cursor(int32_t seat) const { return taken(seat).cursor; }
  SeatState state_of(int32_t seat) const;
  int32_t references(int32_t cached) const;
  int64_t free_seats() const { return static_cast<int64_t>(free_seats_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_pages_.size()); }
  // Throws Error(corrupt) naming what is wrong: seats and pages each in exactly one place, references that add up.
  void check_invariants() const;

  GdnState gdn(int64_t layer) const;  // layer counts GDN layers only
  GdnState gdn_layers() const;        // all of them, the first dimension layers x seats
  View<5> snapshots(
      int64_t layer) const;  // [seats, T, Hv, V, K] of the checkpoint's dtype; null under replay and T = 1
  View<3> conv_ring(int64_t layer) const;  // [seats, Rc, C] f32
  KvPages kv(int64_t layer) const;         // layer counts attention layers, the target's first
  KvPages draft_kv(int64_t layer) const;   // layer counts the drafter's own

  const StateShape& shape() const { return shape_; }
  const StateOptions& options() const { return options_; }
  const StatePlan& plan() const { return plan_; }
  // F of the grid, 0 without one: the grain argument of the gdn ops.
  int64_t grain() const { return options_.ring.policy == FoldPolicy::grid ? options_.ring.F : 0; }
  size_t bytes() const { return arena_.size(); }

 private:
  struct Seat {
    SeatState state = SeatState::free;
    int32_t references = 0;  // of a cached seat
    int64_t pages = 0;       // at the front of the seat's table row
    Cursor cursor;
  };

  template <int N>
  View<N> take(DType dtype, std::array<int64_t, N> shape);
  const Seat& taken(int32_t seat) const;
  Seat& seat_in(int32_t seat, SeatState state);
  int32_t* pages_of(int32_t seat) { return table_.data() + seat * plan_.pages; }
  void move(int32_t seat, Cursor to);
  void release_seat(int32_t seat);
  template <class Visit>
  void for_pages(const Visit& visit) const;
  void free_page(int32_t page);
  int32_t take_seat(SeatState state, Cursor cursor);
  int32_t clone(int32_t from, SeatState state);
  KvPages pages_in(const View<4>& k, const View<4>& v) const;
  template <class Visit>
  void visit_live(int32_t seat, Cursor cursor, const Visit& visit);
  int64_t count_live(int32_t seat, Cursor cursor);

  StateShape shape_;
  StateOptions options_;
  StatePlan plan_;
  Arena arena_;
  View<5> checkpoint_;           // [layers, seats, Hv, V, K]
  View<5> record_k_, record_v_;  // [layers, seats, Hk, R, K], [layers, seats, Hv, R, V]
  View<5> record_g_;             // [layers, seats, Hv, R, G]
  View<4> record_beta_;          // [layers, seats, Hv, R]
  View<6> snapshots_;            // [layers, seats, T, Hv, V, K]
  View<4> conv_;                 // [layers, seats, Rc, C]
  View<6> kv_, draft_kv_;        // [layers, 2, pages, Hkv, page_rows, D]
  std::vector<Seat> seats_;
  std::vector<int32_t> table_;                    // [seats, pages]
  std::vector<int32_t> page_references_;          // [pages]
  std::vector<int32_t> free_seats_, free_pages_;  // stacks, lowest on top
  std::vector<SideState*> sides_;
};

}  // namespace deltaring
