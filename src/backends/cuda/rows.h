// What the host knows of rows in device memory: how many, and what their numbers must satisfy.
#pragma once
#include "ops/rows.h"

namespace deltaring::cuda {

// What an op reads of rows: seat alone; start and first too; all, and what it does with them; all but start.
enum class RowOp : uint8_t { seats, tokens, verify, prefill, fold };

struct RowRules {
  RowOp op;
  int64_t tokens;   // of the views
  int64_t longest;  // of a row that has a seat
  int64_t seats;
  int64_t R = 0;      // ring rows
  int64_t grain = 0;  // 0, or a power of two
};

// Throws Error(invalid_argument): the arrays that the op needs are given, and `longest` where there are tokens.
void check_rows(const char* op, const Rows& rows, const RowRules& rules);

// One row without a seat that owns all tokens, in the host's memory: stands in for rows that lie elsewhere where an op
// is checked, so that everything but the numbers of the rows is.
class StandIn {
 public:
  explicit StandIn(int64_t tokens);
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;
  Rows rows() const {
    return {.count = 1, .start = start_, .seat = &seat_, .first = &zero_, .folded = &zero_, .fold_to = &zero_};
  }

 private:
  int32_t start_[2], seat_ = -1;
  int64_t zero_ = 0;
};

}  // namespace deltaring::cuda
