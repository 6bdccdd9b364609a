#include "ops/rows.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace deltaring {

void check_seats(const Rows& rows, int64_t seats) {
  check(rows.count >= 0, "rows.count is {}, want >= 0", rows.count);
  if (rows.count == 0) return;
  check(rows.seat, "rows of {} need seat", rows.count);
  for (int32_t b = 0; b < rows.count; b++) {
    check(rows.seat[b] >= -1 && rows.seat[b] < seats, "rows.seat[{}] is {}, want -1 or [0, {})", b, rows.seat[b],
          seats);
  }
  std::vector<int32_t> seated(rows.seat, rows.seat + rows.count);
  std::sort(seated.begin(), seated.end());
  const auto twice = std::adjacent_find(std::upper_bound(seated.begin(), seated.end(), -1), seated.end());
  check(twice == seated.end(), "rows.seat holds {} twice; a request is one row of a step",
        twice == seated.end() ? -1 : *twice);
}

void check(const Rows& rows, int64_t seats, int64_t tokens) {
  check_seats(rows, seats);
  check(rows.count == 0 || (rows.start && rows.first), "rows of {} need start and first", rows.count);
  check(rows.tokens() == tokens, "rows hold {} tokens, the views {}", rows.tokens(), tokens);
  if (rows.count == 0) return;
  check(rows.start[0] == 0, "rows.start[0] is {}, want 0", rows.start[0]);
  for (int32_t b = 0; b < rows.count; b++) {
    check(rows.length(b) >= 0, "rows.start descends at row {}: {} to {}", b, rows.start[b], rows.start[b + 1]);
    check(rows.seat[b] < 0 || (rows.first[b] >= 0 && rows.first[b] <= kLastPosition),
          "rows.first[{}] is {}, want >= 0 and at most 2^62", b, rows.first[b]);
  }
}

}  // namespace deltaring
