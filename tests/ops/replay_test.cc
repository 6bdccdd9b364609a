// P1-P6, P8 and P9 of DESIGN section 7 on every backend, and its distance to the float64 oracle.
#include <gtest/gtest.h>

#include "backends/tables.h"
#include "ops/replay_properties.h"

namespace deltaring::replay {
namespace {

// Every dtype, grain, policy and head grouping at least once; small, so that schedules may be many.
std::vector<Shape> small_shapes() {
  using enum DType;
  return {{.Hk = 1, .Hv = 2, .checkpoint = bf16, .record = bf16, .F = 8},
          {.Hk = 2, .Hv = 6, .K = 8, .V = 12, .checkpoint = f32, .record = f32, .F = 16},
          {.Hk = 1, .Hv = 4, .K = 7, .V = 5, .checkpoint = f16, .record = f32, .F = 8},
          {.Hk = 2, .Hv = 2, .K = 8, .V = 8, .checkpoint = f32, .record = bf16, .F = 8, .policy = FoldPolicy::every},
          {.checkpoint = bf16, .record = f32, .F = 16, .policy = FoldPolicy::every}};
}

// The head dims of real models.
std::vector<Shape> large_shapes() {
  using enum DType;
  return {{.Hk = 1, .Hv = 1, .K = 128, .V = 128, .checkpoint = bf16, .record = bf16, .F = 16},
          {.Hk = 2, .Hv = 6, .K = 64, .V = 64, .checkpoint = f32, .record = f32, .F = 8},
          {.Hk = 1, .Hv = 4, .K = 128, .V = 64, .checkpoint = f16, .record = bf16, .F = 8},
          {.Hk = 2, .Hv = 2, .K = 64, .V = 128, .checkpoint = f32, .record = f32, .F = 16}};
}

void expect_none(const Failures& failures) {
  for (const std::string& f : failures) ADD_FAILURE() << f;
}

class Replay : public testing::TestWithParam<const OpTable*> {
 protected:
  Subject subject() const { return subject_of(*GetParam()); }

  void holds(void (*property)(const World&, Failures&)) const {
    for (const Shape& shape : small_shapes()) {
      const World world(subject(), shape, 3, 175);
      expect_none(world.failures);
      if (world.failures.empty()) expect_none(run_property({"", property}, world));
    }
  }
};

TEST_P(Replay, P1_verify_equals_single_steps) { holds(verify_equals_single_steps); }
TEST_P(Replay, P1_prefill_equals_single_steps) { holds(prefill_equals_single_steps); }
TEST_P(Replay, P2_any_acceptance_then_continue) { holds(any_acceptance_then_continue); }
TEST_P(Replay, P3_fold_time_changes_nothing) { holds(fold_time_changes_nothing); }
TEST_P(Replay, P4_poison_is_never_read) { holds(poison_is_never_read); }
TEST_P(Replay, P5_every_wrap_offset) { holds(every_wrap_offset); }
TEST_P(Replay, P6_neighbours_change_nothing) { holds(neighbours_change_nothing); }
TEST_P(Replay, P8_rewind_to_any_position) { holds(rewind_to_any_position); }
TEST_P(Replay, P9_nothing_else_is_written) { holds(nothing_else_is_written); }

TEST_P(Replay, LargeHeads) {
  Rng rng(1);
  for (const Shape& shape : large_shapes()) {
    const World world(subject(), shape, 1, 60);
    Failures failures = world.failures;
    Driver driver(world, 6, ring_rows(world, 6), 3, failures, 2);
    if (driver.ok()) random_steps(world, driver, rng, 12);
    expect_none(failures);
  }
}

// The bound grows with what the f32 arithmetic of each step may add, so a chain shows any drift beyond that.
TEST_P(Replay, StaysNearTheOracle) {
  for (DType checkpoint : {DType::f32, DType::bf16, DType::f16}) {
    for (DType record : {DType::f32, DType::bf16}) {
      for (FoldPolicy policy : {FoldPolicy::grid, FoldPolicy::every}) {
        const Shape shape{.Hk = 1, .Hv = 2, .checkpoint = checkpoint, .record = record, .F = 8, .policy = policy};
        expect_none(World(subject(), shape, 1, 400).failures);
      }
    }
  }
}

TEST_P(Replay, RandomSchedules) {
  for (uint64_t seed = 1; seed <= 25; seed++) {
    for (const std::string& f : random_schedule(subject(), seed)) ADD_FAILURE() << "seed " << seed << ": " << f;
  }
}

INSTANTIATE_TEST_SUITE_P(, Replay, testing::ValuesIn(backends()), [](const auto& info) { return info.param->name; });

}  // namespace
}  // namespace deltaring::replay
