// The properties of DESIGN section 7 as schedules for the Driver, which checks every bit on the way.
#pragma once
#include "ops/replay_commands.h"

namespace deltaring::replay {

inline int64_t ring_rows(const World& w, int64_t T) { return default_ring_rows(T, w.shape.F, w.shape.fold_policy()); }

// P1: a window of T tokens equals T single steps, for every T, from every distance to the checkpoint.
inline void verify_equals_single_steps(const World& w, Failures& failures) {
  std::vector<int64_t> widths = {33, 48, 63, 100};
  for (int64_t T = 1; T <= 32; T++) widths.push_back(T);
  for (int64_t T : widths) {
    Driver d(w, T, ring_rows(w, T), 1, failures);
    for (int64_t start = 0; start < w.shape.F && d.ok(); start += 3) {
      d.admit(0, 0);
      if (start > 0) d.prefill({{.seat = 0, .length = int32_t(start)}});
      for (int64_t done = 0; done < 2 * w.shape.F && d.left(0) >= T && d.ok(); done += T)
        d.step({{.seat = 0, .length = int32_t(T), .keep = int32_t(T)}});
    }
  }
}

// P1 for prefill: any split of the tokens into calls, longer than the ring too.
inline void prefill_equals_single_steps(const World& w, Failures& failures) {
  for (int64_t chunk : {1, 2, 3, 5, 7, 8, 16, 17, 31, 64, 65, 100}) {
    Driver d(w, 4, ring_rows(w, 4), 1, failures);
    d.admit(0, 0);
    for (int64_t i = 0; d.left(0) >= chunk && d.ok(); i++) {
      d.prefill({{.seat = 0, .length = int32_t(chunk)}});
      if (i % 3 == 2 && d.left(0) >= 4 && d.ok()) d.step({{.seat = 0, .length = 4, .keep = 3}});
    }
  }
}

// P2: any number of accepted rows, 0 included, then the next step.
inline void any_acceptance_then_continue(const World& w, Failures& failures) {
  Rng rng(2);
  for (int32_t T : {1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 17, 24, 32}) {
    Driver d(w, T, ring_rows(w, T), 1, failures);
    for (int32_t keep = 0; keep <= T && d.ok(); keep++) {
      d.admit(0, 0);
      for (int32_t k : {T, keep, T - keep, 0, keep, T})
        if (d.left(0) >= T && d.ok()) d.step({{.seat = 0, .length = T, .keep = k, .draft = pick_draft(rng)}});
    }
  }
}

// P3: the step in which a due fold runs changes nothing: late, early, alone, inside a verify or to any grid point of a
// prefill. Snapshots do not fold.
inline void fold_time_changes_nothing(const World& w, Failures& failures) {
  if (w.shape.snapshots()) return;
  Rng rng(3);
  const int64_t F = w.shape.F, grid = w.shape.policy == FoldPolicy::grid ? F : 1;
  for (int64_t T : {1, 4, 7}) {
    Driver d(w, T, 64, 1, failures);
    // Any grid point up to `latest` which leaves room for the next window even if it keeps all and folds nothing more.
    const auto destination = [&](const Cursor& c, int64_t latest, int64_t end) {
      const int64_t room = end + T + w.shape.taps - d.R(), floor = latest / grid * grid;
      const int64_t due = std::max(c.folded, (std::max<int64_t>(room, 0) + grid - 1) / grid * grid);
      return due + pick(rng, (floor - due) / grid) * grid;
    };
    for (int round = 0; round < 3 && d.ok(); round++) {
      d.admit(0, 0);
      while (d.left(0) >= 30 && d.ok()) {
        const Cursor c = d.seat(0).cursor;
        const int64_t length = 20 + pick(rng, 10), to = destination(c, c.pos, c.pos + T);
        if (round == 1 && pick(rng, 2) == 0) d.fold({0}, to);
        if (round == 2 && pick(rng, 3) == 0 && c.pos + length + T - c.folded <= d.R()) {
          const int64_t inside = destination(c, c.pos + length, c.pos + length);
          d.prefill({{.seat = 0, .length = int32_t(length), .fold_to = inside}});
        } else if (d.ok()) {
          d.step({{.seat = 0, .length = int32_t(T), .keep = int32_t(pick(rng, T)), .fold_to = to}});
        }
      }
    }
  }
}

// P4: what lies outside the live window is never read, and what a rejected row holds changes nothing.
inline void poison_is_never_read(const World& w, Failures& failures) {
  Rng rng(4);
  for (int64_t T : {1, 3, 8, 13, 32}) {
    for (std::byte poison : {kNaN, kHuge}) {
      Driver d(w, T, ring_rows(w, T), 4, failures);
      d.layer().poison = poison;
      if (d.ok()) random_steps(d, rng, 30, {.rewinds = false, .prefills = false, .folds = false});
    }
  }
}

// P4 for prefill: whatever its last tokens hold, nothing before them changes, the checkpoint that it stores least of
// all.
inline void prefill_is_causal(const World& w, Failures& failures) {
  if (w.shape.snapshots()) return;
  Rng rng(14);
  Driver d(w, 4, 64, 2, failures);
  for (int32_t length : {2, 9, 17, 24, 40}) {
    for (Draft draft : kDrafts) {
      d.admit(0, 0), d.admit(1, 1);
      for (int i = 0; i < 4 && d.left(0) >= length && d.ok(); i++) {
        const auto bad = static_cast<int32_t>(1 + pick(rng, std::min(length - 1, 15)));
        d.prefill_and_rewind(
            {{.seat = 0, .length = length, .keep = length - bad, .draft = draft}, {.seat = 1, .length = 5, .keep = 5}});
        if (d.ok()) d.step({{.seat = 0, .length = 4, .keep = 2, .draft = draft}});
      }
    }
  }
}

// P5: every slot of the rings as a place to start from.
inline void every_wrap_offset(const World& w, Failures& failures) {
  for (int32_t T : {1, 4, 7, 16}) {
    Driver d(w, T, ring_rows(w, T), 1, failures);
    for (int64_t offset = 0; offset < d.layer().R() && d.ok(); offset++) {
      d.admit(0, 0);
      if (offset > 0) d.prefill({{.seat = 0, .length = int32_t(offset)}});
      for (int32_t keep : {T, (T + 1) / 2, T, 1})
        if (d.left(0) >= T && d.ok()) d.step({{.seat = 0, .length = T, .keep = keep, .draft = Draft::nan}});
    }
  }
}

// P5 for positions: one far beyond 32 bits is as good as any.
inline void positions_are_only_names(const World& w, Failures& failures) {
  Driver d(w, 6, ring_rows(w, 6), 3, failures);
  for (int64_t base : {int64_t{16}, (int64_t{1} << 31) - 16, (int64_t{1} << 40) + 5 * 16}) {
    for (int32_t seat = 0; seat < 3; seat++) d.admit(seat, seat, seat == 1 ? 0 : base);
    for (int32_t keep : {6, 2, 0, 5, 6, 6, 1, 3}) {
      const auto turn = [keep](int32_t seat) { return Turn{.seat = seat, .length = 6, .keep = (keep + seat) % 7}; };
      if (d.ok()) d.step({turn(2), turn(0), turn(1)});
      if (d.ok()) d.prefill({{.seat = 2, .length = 9 - keep}, {.seat = 0, .length = keep}});
    }
  }
}

// P6: a row's bits do not depend on its neighbours, their number, their order or the threads.
inline void neighbours_change_nothing(const World& w, Failures& failures) {
  Rng rng(6);
  for (int threads : {1, 2, 3}) {
    for (int64_t T : {1, 5}) {
      Driver d(w, T, ring_rows(w, T), 6, failures, threads);
      if (d.ok()) random_steps(d, rng, 25, {.rewinds = false});
    }
  }
}

// P8: back to any position that still has its records, and on from there.
inline void rewind_to_any_position(const World& w, Failures& failures) {
  for (int32_t T : {1, 3, 8, 16, 29}) {
    Driver d(w, T, ring_rows(w, T), 2, failures);
    for (int64_t start = w.shape.F; start < 2 * w.shape.F && d.ok(); start += 5) {
      d.admit(0, 0);
      d.prefill({{.seat = 0, .length = int32_t(start)}});
      if (d.ok()) d.step({{.seat = 0, .length = T, .keep = T}});
      const Cursor c = d.seat(0).cursor;
      for (int64_t p = c.folded; p <= c.pos && d.ok(); p++) {
        d.fork(0, 1);
        d.rewind(1, p);
        for (int32_t keep : {0, T, 1})
          if (d.left(1) >= T && d.ok()) d.step({{.seat = 1, .length = T, .keep = keep, .draft = Draft::inf}});
      }
    }
  }
}

// P9: sentinels, foreign seats, live records and cursors stay as they are, with real data around instead of poison.
inline void nothing_else_is_written(const World& w, Failures& failures) {
  Rng rng(9);
  for (int64_t T : {1, 4, 7, 16}) {
    Driver d(w, T, ring_rows(w, T), 4, failures);
    d.layer().poison_each_call = false;
    if (d.ok()) random_steps(d, rng, 40);
  }
}

struct Property {
  const char* name;
  void (*run)(const World&, Failures&);
};

inline constexpr Property kProperties[] = {
    {"P1_verify_equals_single_steps", verify_equals_single_steps},
    {"P1_prefill_equals_single_steps", prefill_equals_single_steps},
    {"P2_any_acceptance_then_continue", any_acceptance_then_continue},
    {"P3_fold_time_changes_nothing", fold_time_changes_nothing},
    {"P4_poison_is_never_read", poison_is_never_read},
    {"P4_prefill_is_causal", prefill_is_causal},
    {"P5_every_wrap_offset", every_wrap_offset},
    {"P5_positions_are_only_names", positions_are_only_names},
    {"P6_neighbours_change_nothing", neighbours_change_nothing},
    {"P8_rewind_to_any_position", rewind_to_any_position},
    {"P9_nothing_else_is_written", nothing_else_is_written},
};

// One property on one world; what it throws is a failure too. Empty = holds.
inline Failures run_property(const Property& property, const World& world) {
  Failures failures;
  try {
    property.run(world, failures);
  } catch (const std::exception& e) {
    failures.push_back(fmt::format("{} ({}) threw: {}", world.subject.table.name, world.shape.name(), e.what()));
  }
  for (std::string& f : failures) f = fmt::format("{}: {}", property.name, f);
  return failures;
}

// All properties on each shape, the oracle's judgement first. Empty = the subject keeps the contract.
inline Failures run_properties(const Subject& subject, const std::vector<Shape>& shapes, int64_t length = 175) {
  Failures all;
  for (const Shape& shape : shapes) {
    try {
      const World world(subject, shape, 3, length);
      for (const std::string& f : world.failures) all.push_back("oracle: " + f);
      if (!world.failures.empty()) continue;
      for (const Property& property : kProperties)
        std::ranges::copy(run_property(property, world), std::back_inserter(all));
    } catch (const std::exception& e) {
      all.push_back(fmt::format("oracle: threw: {}", e.what()));
    }
  }
  return all;
}

}  // namespace deltaring::replay
