// The rows (requests) of one step, shared by every op that touches per-request state.
#pragma once
#include <cstdint>

namespace deltaring {

// The last position that ops take: sums of positions and lengths stay far from overflow.
constexpr int64_t kLastPosition = int64_t{1} << 62;

// Row b owns tokens [start[b], start[b+1]) of the packed token list, at positions first[b], first[b]+1, ...
// Rows may differ in length and be empty. seat -1 = no seat: nothing is read or written for it, its outputs are zeros.
// The arrays lie where the backend computes. Where that is not the host's memory, the host cannot look into them: then
// `longest` is needed (a kernel is chosen by it: not far above the truth), and a row whose numbers are impossible is
// taken for one without a seat.
struct Rows {
  int32_t count = 0;                 // B
  int32_t longest = 0;               // >= the tokens of every row
  const int32_t* start = nullptr;    // [B+1] ascending, start[0] = 0
  const int32_t* seat = nullptr;     // [B] index into the pools, or -1; no seat twice
  const int64_t* first = nullptr;    // [B] position of the row's first token = its cursor's pos
  const int64_t* folded = nullptr;   // [B] the cursor's folded; gdn only
  const int64_t* fold_to = nullptr;  // [B] where the checkpoint shall stand afterwards, folded <= fold_to; gdn only
  // [B] or null: the turns in which rows are begun where not all of them run at once, a permutation. Where those with
  // most to do come first, the last ones are short. No result depends on it.
  const int32_t* order = nullptr;

  int32_t tokens() const { return count ? start[count] : 0; }
  int32_t length(int32_t b) const { return start[b + 1] - start[b]; }
};

// Throws Error(invalid_argument) naming the row: seats in [-1, seats), none but -1 twice. Reads count and seat alone.
void check_seats(const Rows& rows, int64_t seats);

// check_seats, and start ascending from 0 to `tokens`, the tokens of the views; first >= 0 for rows with a seat.
void check(const Rows& rows, int64_t seats, int64_t tokens);

}  // namespace deltaring
