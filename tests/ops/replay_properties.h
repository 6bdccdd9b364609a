// The properties of DESIGN section 7 as schedules for the Driver, which checks every bit on the way.
#pragma once
#include "ops/replay_commands.h"

namespace deltaring::replay {

inline int64_t ring_rows(const World& w, int64_t T) { return default_ring_rows(T, w.shape.F, w.shape.fold_policy()); }

// P1: a window of T tokens equals T single steps, for every T, from every distance to the checkpoint.
inline void verify_equals_single_steps(const World& w, Failures& failures) {
  for (int64_t T = 1; T <= 32 && failures.empty(); T++) {
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

// P3: the step in which a due fold runs changes nothing: late, early, alone or inside a verify. Snapshots do not fold.
inline void fold_time_changes_nothing(const World& w, Failures& failures) {
  if (w.shape.snapshots()) return;
  Rng rng(3);
  const int64_t F = w.shape.F, grid = w.shape.policy == FoldPolicy::grid ? F : 1;
  for (int64_t T : {1, 4, 7}) {
    Driver d(w, T, 64, 1, failures);
    for (int round = 0; round < 2 && d.ok(); round++) {
      d.admit(0, 0);
      while (d.left(0) >= T && d.ok()) {
        const Cursor c = d.seat(0).cursor;
        // The next window must find room even if this one keeps all and folds nothing more.
        const int64_t latest = c.pos / grid * grid, room = c.pos + 2 * T + w.shape.taps - d.layer().R();
        const int64_t due = std::max({c.folded, (std::max<int64_t>(room, 0) + grid - 1) / grid * grid});
        const int64_t to = due + pick(rng, (latest - due) / grid) * grid;
        if (round % 2 && pick(rng, 2) == 0) d.fold({0}, to);
        if (d.ok()) d.step({{.seat = 0, .length = int32_t(T), .keep = int32_t(pick(rng, T)), .fold_to = to}});
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
    {"P5_every_wrap_offset", every_wrap_offset},
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
