#include "state/plan.h"

#include <bit>
#include <utility>

#include "base/arena.h"
#include "base/error.h"

namespace deltaring {

namespace {

int64_t bytes(DType t) { return static_cast<int64_t>(size_of(t)); }

// Sums and products of sizes; what leaves int64 is out of any memory.
class Size {
 public:
  Size(int64_t value) : value_(value) {}  // NOLINT: sizes are numbers
  Size operator*(Size o) const { return combine(__builtin_mul_overflow(value_, o.value_, &o.value_), o); }
  Size operator+(Size o) const { return combine(__builtin_add_overflow(value_, o.value_, &o.value_), o); }
  int64_t get() const { return value_; }

 private:
  static Size combine(bool overflow, Size result) {
    if (overflow)
      fail(ErrorKind::out_of_memory,
           "the state would need more than 2^63 bytes; fewer seats, a smaller ring or a shorter context work");
    return result;
  }
  int64_t value_;
};

Size checkpoint_bytes(const StateShape& s, DType t) { return Size(s.gdn_layers) * s.Hv * s.V * s.K * bytes(t); }

void check_shape(const StateShape& s) {
  const std::pair<const char*, int64_t> extents[] = {{"gdn_layers", s.gdn_layers},
                                                     {"Hk", s.Hk},
                                                     {"Hv", s.Hv},
                                                     {"K", s.K},
                                                     {"V", s.V},
                                                     {"G", s.G},
                                                     {"conv_channels", s.conv_channels},
                                                     {"taps", s.taps},
                                                     {"kv_layers", s.kv_layers},
                                                     {"Hkv", s.Hkv},
                                                     {"D", s.D},
                                                     {"draft_layers", s.draft_layers},
                                                     {"draft_Hkv", s.draft_Hkv},
                                                     {"draft_D", s.draft_D}};
  for (const auto& [name, extent] : extents) check(extent >= 0, "state shape: {} is {}, want >= 0", name, extent);
}

}  // namespace

StatePlan plan_state(const StateShape& s, const StateOptions& o) {
  const bool replay = o.rollback == StateRollback::replay;
  replay ? check_ring(o.ring) : check_window(o.ring);
  check_shape(s);
  check(o.seats >= 1, "--max-running-requests {}: at least 1 seat is needed; 1 works", o.seats);
  check(o.kv_tokens >= 1, "--context-length {}: at least 1 token must fit; 4096 works", o.kv_tokens);
  check(o.page_rows >= 1 && std::has_single_bit(static_cast<uint64_t>(o.page_rows)),
        "page size {}: positions per page are a power of two; 64 works", o.page_rows);
  StatePlan plan;
  const Size key_dim = Size(s.Hk) * s.K, value_dim = Size(s.Hv) * s.V,
             gates = Size(s.Hv) * (Size(s.G) + 1) * bytes(DType::f32);
  plan.conv_rows = replay ? conv_ring_rows(o.ring, s.taps) : s.taps - 1 + o.ring.T;
  plan.checkpoint_per_seat = checkpoint_bytes(s, o.checkpoint).get();
  if (replay)
    plan.records_per_seat = (Size(s.gdn_layers) * o.ring.R * ((key_dim + value_dim) * bytes(o.record) + gates)).get();
  if (!replay && o.ring.T > 1) plan.snapshots_per_seat = (checkpoint_bytes(s, o.checkpoint) * o.ring.T).get();
  plan.conv_per_seat = (Size(s.gdn_layers) * plan.conv_rows * s.conv_channels * bytes(DType::f32)).get();
  const Size kv_per_token = Size(s.kv_layers) * s.Hkv * s.D + Size(s.draft_layers) * s.draft_Hkv * s.draft_D;
  plan.kv_per_page = (kv_per_token * 2 * o.page_rows * bytes(o.kv)).get();
  // Each seat may leave one page partly used, so that many pages more make kv_tokens a promise.
  plan.pages = (Size((o.kv_tokens - 1) / o.page_rows) + o.seats).get();
  const int64_t pieces = 9, padding = pieces * static_cast<int64_t>(Arena::kAlignment);
  const Size seat =
      Size(plan.checkpoint_per_seat) + plan.records_per_seat + plan.snapshots_per_seat + plan.conv_per_seat;
  plan.total = (seat * o.seats + Size(plan.pages) * plan.kv_per_page + padding).get();
  return plan;
}

StatePlan plan_state_as(StateRollback rollback, const StateShape& shape, StateOptions options) {
  options.rollback = rollback;
  return plan_state(shape, options);
}

}  // namespace deltaring
