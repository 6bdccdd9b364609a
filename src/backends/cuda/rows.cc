#include "backends/cuda/rows.h"

#include <limits>

#include "base/error.h"

namespace deltaring::cuda {

void check_rows(const char* op, const Rows& rows, const RowRules& rules) {
  check(rows.count >= 0, "{}: rows.count is {}, want >= 0", op, rows.count);
  if (rows.count == 0) {
    check(rules.tokens == 0, "{}: rows hold 0 tokens, the views {}", op, rules.tokens);
    return;
  }
  const bool start = rules.op != RowOp::seats && rules.op != RowOp::fold, first = rules.op != RowOp::seats;
  check(rows.seat, "{}: rows of {} need seat", op, rows.count);
  check((!start || rows.start) && (!first || rows.first), "{}: rows of {} need start and first", op, rows.count);
  check(rules.op <= RowOp::tokens || (rows.folded && rows.fold_to), "{}: rows of {} need folded and fold_to", op,
        rows.count);
  check(rules.tokens == 0 || rows.longest > 0,
        "{}: rows.longest is {}, want the tokens of the longest row: the host cannot look into rows on the device", op,
        rows.longest);
}

StandIn::StandIn(int64_t tokens) : start_{0, static_cast<int32_t>(tokens)} {
  check(tokens <= std::numeric_limits<int32_t>::max(), "the views hold {} tokens, want < 2^31", tokens);
}

}  // namespace deltaring::cuda
