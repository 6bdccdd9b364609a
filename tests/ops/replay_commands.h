// Schedules as lists of commands, each one thing that an engine does to its seats. Any list is a schedule: what a
// command asks beyond what is possible is cut down when it is applied, so a schedule stays one when commands are taken
// out.
#pragma once
#include <random>

#include "ops/replay_driver.h"

namespace deltaring::replay {

using Rng = std::mt19937_64;

// Uniform in [0, n].
inline int64_t pick(Rng& rng, int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n + 1)); }
inline Draft pick_draft(Rng& rng) { return kDrafts[pick(rng, std::size(kDrafts) - 1)]; }

enum class What { step, prefill, fold, rewind, fork, admit, free };

struct Command {
  What what = What::step;
  int32_t seat = 0;         // whose, but for step and prefill
  int32_t amount = 0;       // rewind: tokens back; fork: the seat it goes to; admit: the request
  std::vector<Turn> turns;  // step and prefill
};

inline std::string to_string(const Command& c) {
  constexpr const char* kWhat[] = {"step", "prefill", "fold", "rewind", "fork", "admit", "free"};
  std::string s = kWhat[static_cast<int>(c.what)];
  if (c.what > What::prefill) s += fmt::format(" seat {}", c.seat);
  if (c.what > What::fold && c.what < What::free) s += fmt::format(" by {}", c.amount);
  if (c.what > What::prefill) return s;
  for (const Turn& t : c.turns) {
    const bool all = c.what == What::prefill;
    s += all ? fmt::format(" [seat {}: {}]", t.seat, t.length)
             : fmt::format(" [seat {}: {} of {}, draft {}]", t.seat, t.keep, t.length, static_cast<int>(t.draft));
  }
  return s;
}

// The turns that are possible: live seats, each once, within what is left of their requests.
inline std::vector<Turn> possible(const Driver& d, const std::vector<Turn>& turns, int64_t longest) {
  std::vector<bool> taken(d.seats());
  std::vector<Turn> result;
  for (Turn turn : turns) {
    const bool seated = turn.seat >= 0;
    if (seated && (turn.seat >= d.seats() || !d.live(turn.seat) || taken[turn.seat])) continue;
    if (seated) taken[turn.seat] = true;
    const int64_t most = seated ? std::min(longest, std::max<int64_t>(d.left(turn.seat), 0)) : longest;
    turn.length = static_cast<int32_t>(std::clamp<int64_t>(turn.length, 0, most));
    turn.keep = seated ? std::clamp(turn.keep, 0, turn.length) : 0;
    result.push_back(turn);
  }
  return result;
}

inline void apply(const Command& c, Driver& d) {
  if (c.what == What::step) return d.step(possible(d, c.turns, d.T()));
  if (c.what == What::prefill) return d.prefill(possible(d, c.turns, d.world().length));
  const int64_t seat = c.seat % d.seats();
  if (c.what == What::admit) return d.admit(seat, c.amount % static_cast<int64_t>(d.world().requests.size()));
  if (c.what == What::free) return d.free(seat);
  if (!d.live(seat)) return;
  const Cursor at = d.seat(seat).cursor;
  if (c.what == What::rewind) return d.rewind(seat, std::max(at.folded, at.pos - c.amount));
  if (c.what == What::fold && !d.world().shape.snapshots()) return d.fold({static_cast<int32_t>(seat)});
  const int64_t to = c.amount % d.seats();
  if (c.what == What::fork && to != seat) d.fork(seat, to);
}

struct Mix {
  bool rewinds = true, prefills = true, folds = true;
};

// A batch of some seats in any order, with rows that have no seat in between.
inline std::vector<Turn> pick_turns(const Driver& d, Rng& rng, int64_t longest) {
  std::vector<Turn> turns;
  for (int32_t seat = 0; seat < d.seats(); seat++) {
    if (!d.live(seat) || pick(rng, 3) == 0) continue;
    const auto length = static_cast<int32_t>(pick(rng, std::min(longest, d.left(seat))));
    turns.push_back({.seat = seat, .length = length, .keep = int32_t(pick(rng, length)), .draft = pick_draft(rng)});
  }
  for (int64_t i = pick(rng, 2); i > 0; i--)
    turns.push_back({.seat = -1, .length = int32_t(pick(rng, longest)), .draft = pick_draft(rng)});
  std::ranges::shuffle(turns, rng);
  return turns;
}

inline Command pick_command(const Driver& d, Rng& rng, Mix mix) {
  const auto seat = static_cast<int32_t>(pick(rng, d.seats() - 1)), any = static_cast<int32_t>(pick(rng, 99));
  const int64_t what = pick(rng, 99);
  if (what < 4 || (d.live(seat) && d.left(seat) < d.T())) return {What::admit, seat, any, {}};
  if (what < 6) return {What::free, seat, 0, {}};
  if (what < 10) return {What::fork, seat, any, {}};
  if (what < 18 && mix.rewinds) return {What::rewind, seat, any % 33, {}};
  if (what < 26 && mix.prefills)
    return {What::prefill, 0, 0, pick_turns(d, rng, pick(rng, 3) ? 12 : 2 * std::min<int64_t>(d.R(), 32))};
  if (what < 30 && mix.folds) return {What::fold, seat, 0, {}};
  return {What::step, 0, 0, pick_turns(d, rng, d.T())};
}

// What an engine does to its seats, in any order.
inline void random_steps(Driver& d, Rng& rng, int steps, Mix mix = {}) {
  const auto requests = static_cast<int64_t>(d.world().requests.size());
  for (int64_t seat = 0; seat + 1 < d.seats(); seat++) d.admit(seat, seat % requests);  // the last one stays free
  for (int i = 0; i < steps && d.ok(); i++) apply(pick_command(d, rng, mix), d);
}

}  // namespace deltaring::replay
