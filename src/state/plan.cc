#include "state/plan.h"

#include <bit>

#include "base/arena.h"
#include "base/error.h"

namespace deltaring {

namespace {
int64_t bytes(DType t) { return static_cast<int64_t>(size_of(t)); }
int64_t checkpoint_bytes(const StateShape& s, DType t) { return s.gdn_layers * s.Hv * s.V * s.K * bytes(t); }
}  // namespace

StatePlan plan_state(const StateShape& s, const StateOptions& o) {
  check_ring(o.ring);
  check(o.seats >= 1, "--max-running-requests {}: at least 1 seat is needed; 1 works", o.seats);
  check(o.kv_tokens >= 1, "--context-length {}: at least 1 token must fit; 4096 works", o.kv_tokens);
  check(o.page_rows >= 1 && std::has_single_bit(static_cast<uint64_t>(o.page_rows)),
        "page size {}: positions per page are a power of two; 64 works", o.page_rows);
  StatePlan plan;
  const int64_t R = o.ring.R;
  plan.conv_rows = conv_ring_rows(o.ring.T, R, s.taps);
  plan.checkpoint_per_seat = checkpoint_bytes(s, o.checkpoint);
  plan.records_per_seat =
      s.gdn_layers * R * ((s.Hk * s.K + s.Hv * s.V) * bytes(o.record) + 2 * s.Hv * bytes(DType::f32));
  plan.conv_per_seat = s.gdn_layers * plan.conv_rows * s.conv_channels * bytes(DType::f32);
  plan.kv_per_page = s.kv_layers * 2 * s.Hkv * o.page_rows * s.D * bytes(o.kv);
  // Each seat may leave one page partly used, so that many pages more make kv_tokens a promise.
  plan.pages = (o.kv_tokens + o.page_rows - 1) / o.page_rows + o.seats - 1;
  const int64_t pieces = 7;
  plan.total = o.seats * plan.ring_state_per_seat() + plan.pages * plan.kv_per_page +
               pieces * static_cast<int64_t>(Arena::kAlignment);
  return plan;
}

int64_t snapshot_state_per_seat(const StateShape& s, const StateOptions& o) {
  const int64_t conv_window = s.gdn_layers * (s.taps - 1) * s.conv_channels * bytes(DType::f32);
  return (1 + o.ring.T) * (checkpoint_bytes(s, o.checkpoint) + conv_window);
}

}  // namespace deltaring
