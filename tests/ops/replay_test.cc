// P1-P6, P8 and P9 of DESIGN section 7 on every backend, and its distance to the float64 oracle.
#include <gtest/gtest.h>

#include "backends/tables.h"
#include "ops/replay_random.h"

namespace deltaring::replay {
namespace {

using enum DType;

// Every dtype, grain, policy, kind of gate and norm and head grouping at least once; small, so that schedules may be
// many.
std::vector<Shape> small_shapes() {
  return {
      {.Hk = 1, .Hv = 2, .checkpoint = bf16, .record = bf16, .F = 8},
      {.Hk = 2, .Hv = 6, .K = 8, .V = 12, .checkpoint = f32, .record = f32, .F = 16},
      {.Hk = 1, .Hv = 4, .K = 7, .V = 5, .checkpoint = f16, .record = f32, .F = 8},
      {.Hk = 2, .Hv = 2, .K = 8, .V = 8, .checkpoint = f32, .record = bf16, .F = 8, .policy = FoldPolicy::every},
      {.checkpoint = bf16, .record = f32, .F = 16, .policy = FoldPolicy::every},
      {.Hk = 1, .Hv = 2, .K = 9, .V = 8, .G = 9, .checkpoint = bf16, .record = f16, .F = 8},
      {.Hk = 1, .Hv = 1, .K = 16, .V = 3, .G = 16, .checkpoint = f32, .F = 16, .norm = QkNorm::none, .scale = 1},
      {.Hk = 1, .Hv = 3, .K = 12, .V = 5, .checkpoint = f16, .record = f16, .norm = QkNorm::none, .scale = 0.3f},
      {.K = 8, .V = 8, .G = 8, .checkpoint = f32, .policy = FoldPolicy::every, .scale = -2},
      {.Hk = 1, .Hv = 2, .checkpoint = bf16, .rollback = Rollback::snapshot},
      {.Hk = 2, .Hv = 2, .K = 9, .V = 7, .G = 9, .checkpoint = f16, .scale = 0.3f, .rollback = Rollback::snapshot},
      {.K = 8, .V = 6, .checkpoint = f32, .norm = QkNorm::none, .rollback = Rollback::snapshot},
      {.Hk = 1, .Hv = 3, .V = 8, .checkpoint = bf16, .record = bf16, .tokens = bf16, .out = bf16, .fused = true},
      {.Hk = 1, .Hv = 2, .K = 10, .V = 6, .G = 10, .checkpoint = f16, .F = 16, .tokens = f16, .fused = true},
      {.K = 8, .V = 6, .checkpoint = bf16, .rollback = Rollback::snapshot, .tokens = bf16, .out = f16},
  };
}

// The head dims of real models.
std::vector<Shape> large_shapes() {
  return {
      {.Hk = 1, .Hv = 1, .K = 128, .V = 128, .checkpoint = bf16, .record = bf16, .F = 16},
      {.Hk = 2, .Hv = 6, .K = 64, .V = 64, .checkpoint = f32, .record = f32, .F = 8},
      {.Hk = 1, .Hv = 4, .K = 128, .V = 64, .checkpoint = f16, .record = bf16, .F = 8},
      {.Hk = 8, .Hv = 8, .K = 64, .V = 128, .checkpoint = f32, .record = f32, .F = 16},
      {.Hk = 1, .Hv = 2, .K = 128, .V = 128, .G = 128, .checkpoint = bf16, .record = bf16, .F = 8},
      {.Hk = 1, .Hv = 1, .K = 256, .V = 64, .G = 256, .checkpoint = f16, .record = f16, .F = 16},
      {.Hk = 1, .Hv = 1, .K = 64, .V = 256, .checkpoint = bf16, .record = f16, .norm = QkNorm::none, .scale = 1},
      {.Hk = 1, .Hv = 3, .K = 128, .V = 128, .checkpoint = bf16, .rollback = Rollback::snapshot},
      {.Hk = 1,
       .Hv = 3,
       .K = 128,
       .V = 128,
       .checkpoint = bf16,
       .record = bf16,
       .F = 16,
       .tokens = bf16,
       .out = bf16,
       .fused = true},
      {.Hk = 2, .Hv = 2, .K = 128, .V = 128, .checkpoint = f32, .record = bf16, .tokens = bf16, .fused = true},
  };
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
TEST_P(Replay, P4_prefill_is_causal) { holds(prefill_is_causal); }
TEST_P(Replay, P5_every_wrap_offset) { holds(every_wrap_offset); }
TEST_P(Replay, P5_positions_are_only_names) { holds(positions_are_only_names); }
TEST_P(Replay, P6_neighbours_change_nothing) { holds(neighbours_change_nothing); }
TEST_P(Replay, P8_rewind_to_any_position) { holds(rewind_to_any_position); }
TEST_P(Replay, P9_nothing_else_is_written) { holds(nothing_else_is_written); }

TEST_P(Replay, LargeHeads) {
  Rng rng(1);
  for (const Shape& shape : large_shapes()) {
    const World world(subject(), shape, 1, 60);
    Failures failures = world.failures;
    Driver driver(world, 6, ring_rows(world, 6), 3, failures, 2);
    if (driver.ok()) random_steps(driver, rng, 12);
    expect_none(failures);
  }
}

// The bound grows with what the f32 arithmetic of each step may add, so a chain shows any drift beyond that.
TEST_P(Replay, StaysNearTheOracle) {
  for (DType checkpoint : {f32, bf16, f16}) {
    for (DType record : {f32, bf16, f16}) {
      for (FoldPolicy policy : {FoldPolicy::grid, FoldPolicy::every}) {
        const Shape shape{.Hk = 1, .Hv = 2, .checkpoint = checkpoint, .record = record, .F = 8, .policy = policy};
        expect_none(World(subject(), shape, 1, 400).failures);
      }
    }
  }
}

// The inverse length of a key times a decay may be subnormal where neither is: a backend that multiplies these two
// first has lost digits.
TEST_P(Replay, LongKeysKeepTheirDigitsUnderSmallDecays) {
  for (DType record : {f32, bf16}) {
    const Shape shape{.Hk = 5, .Hv = 5, .K = 2, .V = 2, .taps = 3, .record = record, .scale = 1};
    expect_none(World(subject(), shape, 1, 40, kCornerRequest).failures);
  }
}

// The two ways to undo a token are the same layer, so with a float32 state both are as near the oracle as float32 is.
TEST_P(Replay, SnapshotsComputeWhatReplayComputes) {
  for (int64_t G : {1, 10}) {
    for (QkNorm norm : {QkNorm::l2, QkNorm::none}) {
      Shape shape{.Hk = 1, .Hv = 2, .K = 10, .V = 12, .G = G, .norm = norm};
      for (int64_t request : {int64_t{7}, kCornerRequest}) {
        const World ring(subject(), shape, 1, 300, request);
        Shape other = shape;
        other.rollback = Rollback::snapshot;
        const World snapshots(subject(), other, 1, 300, request);
        expect_none(ring.failures), expect_none(snapshots.failures);
        const Truth &a = ring.requests[0], &b = snapshots.requests[0];
        ASSERT_EQ(a.out.size(), b.out.size());
        for (size_t i = 0; i < a.out.size(); i++)
          ASSERT_LE(std::fabs(a.out[i] - b.out[i]), a.tolerance[i] + b.tolerance[i]) << shape.name() << " output " << i;
      }
    }
  }
}

TEST_P(Replay, RandomSchedules) {
  for (uint64_t seed = 1; seed <= 40; seed++) {
    const auto world = random_world(subject(), seed, 2);
    for (uint64_t ride = 0; ride < 3; ride++)
      for (const std::string& f : random_schedule(*world, 1000 * seed + ride, 25))
        ADD_FAILURE() << "world " << seed << ", schedule " << ride << ": " << f;
  }
}

INSTANTIATE_TEST_SUITE_P(, Replay, testing::ValuesIn(backends()), [](const auto& info) { return info.param->name; });

}  // namespace
}  // namespace deltaring::replay
