// Schedules out of 2^64: what is under test, and what is done with it, are functions of seeds alone.
#pragma once
#include "ops/replay_properties.h"

namespace deltaring::replay {

// All kinds of layers. `large` out of 100 have head dims of real models.
inline Shape random_shape(Rng& rng, int64_t large) {
  constexpr int64_t kKeyHeads[] = {1, 1, 1, 1, 2, 2, 3, 4, 5, 8}, kLargeDims[] = {64, 128, 256};
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
  constexpr float kScales[] = {0, 0, 0.3f, 1};
  const bool is_large = pick(rng, 99) < large, snapshots = pick(rng, 4) == 0;
  const auto dim = [&] {
    if (is_large) return kLargeDims[pick(rng, 2)];
    return 1 + pick(rng, pick(rng, 5) ? 15 : 70);
  };
  Shape s{.K = dim(), .V = dim()};
  s.Hk = is_large ? 1 + pick(rng, 1) : kKeyHeads[pick(rng, 9)];
  s.Hv = s.Hk * (1 + pick(rng, is_large ? 0 : 8 / s.Hk - 1));
  s.G = pick(rng, 2) ? 1 : s.K;
  s.taps = 1 + pick(rng, 4);
  s.checkpoint = kTypes[pick(rng, 2)];
  s.record = snapshots ? DType::f32 : kTypes[pick(rng, 2)];
  s.F = pick(rng, 1) ? 16 : 8;
  // Off the grid 16-bit states promise no bits.
  s.policy = s.checkpoint == DType::f32 && pick(rng, 2) == 0 ? FoldPolicy::every : FoldPolicy::grid;
  s.norm = pick(rng, 3) ? QkNorm::l2 : QkNorm::none;
  s.scale = kScales[pick(rng, 3)];
  s.rollback = snapshots ? Rollback::snapshot : Rollback::replay;
  if (pick(rng, 1)) s.tokens = kTypes[pick(rng, 2)], s.out = kTypes[pick(rng, 2)];
  s.fused = !snapshots && pick(rng, 2) == 0;
  return s;
}

// Two requests of a random layer, the numerical corners among them now and then.
inline std::unique_ptr<World> random_world(const Subject& subject, uint64_t seed, int64_t large) {
  Rng rng(seed);
  const Shape shape = random_shape(rng, large);
  const int64_t first = pick(rng, 9) ? static_cast<int64_t>(seed % 500) : kCornerRequest;
  return std::make_unique<World>(subject, shape, 2, 100, first);
}

// Any window, ring, batch and thread count, and `steps` commands. Short windows are the more frequent ones.
inline Failures random_schedule(const World& world, uint64_t seed, int steps) {
  Rng rng(seed);
  const int64_t T = 1 + pick(rng, pick(rng, 3) ? 7 : 31);
  const int64_t R = ring_rows(world, T) << (pick(rng, 3) == 0);
  const int64_t seats = 2 + pick(rng, 3);
  const int threads = pick(rng, 7) ? 1 : static_cast<int>(2 + pick(rng, 1));
  Failures failures = world.failures;
  try {
    Driver driver(world, T, R, seats, failures, threads);
    driver.layer().poison_each_call = pick(rng, 3) != 0;
    driver.layer().poison = pick(rng, 1) ? kNaN : kHuge;
    if (driver.ok()) random_steps(driver, rng, steps);
  } catch (const std::exception& e) {
    failures.push_back(fmt::format("{} threw: {}", world.shape.name(), e.what()));
  }
  return failures;
}

}  // namespace deltaring::replay
