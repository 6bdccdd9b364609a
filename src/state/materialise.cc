#include "state/materialise.h"

#include <vector>

#include "base/error.h"

namespace deltaring {

int64_t materialise(StatePool& pool, std::span<const int32_t> seats, const OpTable& ops, Stream& stream, QkNorm norm) {
  std::vector<int32_t> seat;
  std::vector<int64_t> folded, pos;
  for (const int32_t s : seats) {
    check(pool.state_of(s) == SeatState::owned, "materialise: seat {} is not owned; a copy of it can be", s);
    const Cursor c = pool.cursor(s);
    if (c.folded == c.pos) continue;
    seat.push_back(s), folded.push_back(c.folded), pos.push_back(c.pos);
  }
  if (seat.empty()) return 0;
  const Rows rows{.count = static_cast<int32_t>(seat.size()),
                  .seat = seat.data(),
                  .first = pos.data(),
                  .folded = folded.data(),
                  .fold_to = pos.data()};
  for (int64_t layer = 0; layer < pool.shape().gdn_layers; layer++)
    ops.gdn_fold({.rows = rows, .state = pool.gdn(layer), .grain = 0, .norm = norm}, stream);
  for (size_t i = 0; i < seat.size(); i++) pool.commit(seat[i], pos[i], 0);
  return static_cast<int64_t>(seat.size());
}

}  // namespace deltaring
