// The cpu backend on every SIMD target of this machine, not only the best one: the bits of two targets may differ, the
// properties hold on each.
#include <gtest/gtest.h>

#include "backends/tables.h"
#include "hwy/highway.h"
#include "ops/replay_random.h"

namespace deltaring::replay {
namespace {

// Undoes the choice of a target.
struct ChosenTarget {
  explicit ChosenTarget(int64_t target) { choose(target); }
  ~ChosenTarget() { choose(0); }
  static void choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST(ReplayTargets, PropertiesHoldOnEach) {
  const Subject subject = subject_of(backend("cpu"));
  const std::vector<Shape> shapes = {
      {.Hk = 1, .Hv = 2, .K = 9, .V = 6, .checkpoint = DType::bf16, .record = DType::f16},
      {.K = 16, .V = 7, .G = 16, .checkpoint = DType::f16, .F = 16, .scale = 0.5f},
      {.K = 8, .V = 8, .checkpoint = DType::f16, .norm = QkNorm::none, .rollback = Rollback::snapshot},
  };
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  EXPECT_FALSE(targets.empty());
  for (const int64_t target : targets) {
    const ChosenTarget chosen(target);
    for (const std::string& f : run_properties(subject, shapes, 120))
      ADD_FAILURE() << hwy::TargetName(target) << ": " << f;
    for (uint64_t seed = 1; seed <= 20; seed++) {
      const auto world = random_world(subject, seed, 5);
      for (const std::string& f : random_schedule(*world, seed, 20))
        ADD_FAILURE() << hwy::TargetName(target) << ", world " << seed << ": " << f;
    }
  }
}

}  // namespace
}  // namespace deltaring::replay
