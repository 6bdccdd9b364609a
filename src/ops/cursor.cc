#include "ops/cursor.h"

#include <bit>

#include "base/error.h"

namespace deltaring {

void check_window(const RingOptions& o) {
  constexpr int64_t kWidest = 256;
  check(o.T >= 1 && o.T <= kWidest,
        "--speculative-num-draft-tokens {}: the window holds the anchor and the drafts, 1 to {} tokens; 4 works", o.T,
        kWidest);
  check(o.F == 8 || o.F == 16, "--fold-grain {}: checkpoints stand on multiples of 8 or 16 tokens; 8 works", o.F);
}

void check_ring(const RingOptions& o) {
  constexpr int64_t kLongest = 65536;
  check_window(o);
  const int64_t works = default_ring_rows(o.T, o.F, o.policy);
  const bool power_of_two = o.R > 0 && std::has_single_bit(static_cast<uint64_t>(o.R));
  check(power_of_two && o.R >= 16 && o.R >= o.T && o.R <= kLongest,
        "--linear-replayssm-cache-len {}: a ring is a power of two from 16 to {}, and at least the window of {} "
        "tokens; {} works",
        o.R, kLongest, o.T, works);
  check(o.policy == FoldPolicy::every || o.R >= o.F - 1 + 2 * o.T,
        "--linear-replayssm-cache-len {}: with --fold-policy grid, fold grain {} and a window of {} tokens a ring "
        "holds at "
        "least {} rows; {} works",
        o.R, o.F, o.T, o.F - 1 + 2 * o.T, works);
}

}  // namespace deltaring
