#include "ops/commit.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "ops/rows.h"

namespace deltaring {

void check_pointers(const CommitArgs& a) {
  check(a.count >= 0, "commit: count is {}, want >= 0", a.count);
  check(a.F == 8 || a.F == 16, "commit: F is {}, want 8 or 16", a.F);
  check(a.count == 0 || (a.seat && a.kept && a.first && a.folded && a.fold_to),
        "commit: rows of {} need seat, kept, first, folded and fold_to", a.count);
}

void check(const CommitArgs& a) {
  check_pointers(a);
  for (int32_t b = 0; b < a.count; b++) {
    if (a.seat[b] < 0) continue;
    check(a.kept[b] >= 0, "commit: kept[{}] is {}, want >= 0", b, a.kept[b]);
    check(0 <= a.first[b] && a.first[b] <= kLastPosition, "commit: first[{}] is {}, want >= 0 and at most 2^62", b,
          a.first[b]);
    const int64_t end = a.first[b] + a.kept[b];
    check(0 <= a.folded[b] && a.folded[b] <= a.fold_to[b] && a.fold_to[b] <= end,
          "commit: row {}: folded {} and fold_to {} do not ascend from 0 to first + kept = {}", b, a.folded[b],
          a.fold_to[b], end);
  }
}

void commit_rows(const CommitArgs& a) {
  for (int32_t b = 0; b < a.count; b++) {
    if (a.seat[b] >= 0) move_cursor(a, b);
  }
  if (!a.order) return;
  std::iota(a.order, a.order + a.count, 0);
  std::stable_sort(a.order, a.order + a.count,
                   [&](int32_t b, int32_t c) { return kind_of_work(a, b) < kind_of_work(a, c); });
}

}  // namespace deltaring
