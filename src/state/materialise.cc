#include "state/materialise.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace deltaring {

namespace {

// Folds the seats' records up to to(cursor), where there are any.
template <class To>
void fold(StatePool& pool, std::span<const int32_t> seats, int64_t grain, const OpTable& ops, Stream& stream,
          QkNorm norm, const To& to) {
  std::vector<int32_t> seat;
  std::vector<int64_t> folded, fold_to, pos;
  for (const int32_t s : seats) {
    const Cursor c = pool.cursor(s);
    if (c.folded == to(c)) continue;
    seat.push_back(s), folded.push_back(c.folded), fold_to.push_back(to(c)), pos.push_back(c.pos);
  }
  if (seat.empty()) return;
  const Rows rows{.count = static_cast<int32_t>(seat.size()),
                  .seat = seat.data(),
                  .first = pos.data(),
                  .folded = folded.data(),
                  .fold_to = fold_to.data()};
  const int64_t layers = pool.shape().gdn_layers;
  if (layers > 0)
    ops.gdn_fold({.rows = rows, .state = pool.gdn_layers(), .grain = grain, .norm = norm, .layers = layers}, stream);
  for (size_t i = 0; i < seat.size(); i++) pool.commit(seat[i], fold_to[i], 0);
}

}  // namespace

int64_t materialise(StatePool& pool, std::span<const int32_t> seats, const OpTable& ops, Stream& stream, QkNorm norm) {
  int64_t with_records = 0;
  for (const int32_t s : seats) {
    check(pool.state_of(s) == SeatState::owned, "materialise: seat {} is not owned; a copy of it can be", s);
    with_records += pool.cursor(s).folded < pool.cursor(s).pos;
  }
  // What is due on the grid first, as a verify would fold it.
  if (const int64_t F = pool.grain())
    fold(pool, seats, F, ops, stream, norm, [F](Cursor c) { return std::max(c.folded, c.pos / F * F); });
  fold(pool, seats, 0, ops, stream, norm, [](Cursor c) { return c.pos; });
  return with_records;
}

}  // namespace deltaring
