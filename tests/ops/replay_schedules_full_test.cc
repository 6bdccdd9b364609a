// Random schedules by the thousand, and the sweeps that are too long for every build.
// To replay one schedule, set kFirst to the seed that failed and kSchedules to 1.
#include <gtest/gtest.h>

#include "backends/tables.h"
#include "ops/replay_properties.h"

namespace deltaring::replay {
namespace {

constexpr uint64_t kFirst = 1000;
constexpr uint64_t kSchedules = 2000;  // on the fast backends
constexpr uint64_t kReferenceSchedules = 100;

class ReplaySchedules : public testing::TestWithParam<const OpTable*> {
 protected:
  Subject subject() const { return subject_of(*GetParam()); }
  bool slow() const { return !subject().f32_state; }
};

TEST_P(ReplaySchedules, EqualPlainDecodingBitForBit) {
  const uint64_t count = slow() ? std::min(kReferenceSchedules, kSchedules) : kSchedules;
  for (uint64_t seed = kFirst; seed < kFirst + count; seed++) {
    for (const std::string& f : random_schedule(subject(), seed)) ADD_FAILURE() << "seed " << seed << ": " << f;
    if (HasFailure()) break;
  }
}

TEST_P(ReplaySchedules, Field_C14_every_width_from_every_start) {
  const World world(subject(), {.Hk = 1, .Hv = 2, .checkpoint = DType::bf16, .record = DType::bf16}, 1, 105);
  Failures failures = world.failures;
  for (int32_t T = 1; T <= 16 && failures.empty(); T++) {
    Driver d(world, T, ring_rows(world, T), 1, failures);
    for (int32_t start = 0; start < 64 && d.ok(); start++) {
      d.admit(0, 0);
      if (start > 0) d.prefill({{.seat = 0, .length = start}});
      for (int32_t keep : {T, std::max(1, T / 2)})
        if (d.ok()) d.step({{.seat = 0, .length = T, .keep = keep, .draft = Draft::nan}});
    }
  }
  for (const std::string& f : failures) ADD_FAILURE() << f;
}

// Thousands of tokens in one go: the distance to the oracle must not grow beyond its bound, whatever the state's dtype.
TEST_P(ReplaySchedules, Field_B1_B4_long_chains_do_not_drift) {
  for (DType checkpoint : {DType::f32, DType::bf16, DType::f16}) {
    const World world(subject(), {.Hk = 1, .Hv = 2, .checkpoint = checkpoint}, 1, 8192);
    for (const std::string& f : world.failures) ADD_FAILURE() << f;
  }
}

INSTANTIATE_TEST_SUITE_P(, ReplaySchedules, testing::ValuesIn(backends()),
                         [](const auto& info) { return info.param->name; });

}  // namespace
}  // namespace deltaring::replay
