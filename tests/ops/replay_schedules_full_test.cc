// 100,000 random schedules (20,000 on a device), and the sweeps that are too long for every build. To replay one
// schedule:
//   ops_full_tests --gtest_filter='*Schedules*/cpu_<shard>' and the world and ride that it names.
#include <gtest/gtest.h>

#include "backends/tables.h"
#include "ops/replay_random.h"

namespace deltaring::replay {
namespace {

constexpr int kShards = 50, kWorldsOfAShard = 40, kRidesOfAWorld = 50;
constexpr int kReferenceShards = 4, kReferenceRidesOfAWorld = 15, kDeviceShards = 10;
constexpr int64_t kLargeWorlds = 1;  // out of 100 have head dims of real models

struct Shard {
  const OpTable* table;
  int index;
};

std::vector<Shard> shards() {
  std::vector<Shard> all;
  for (const OpTable* table : backends()) {
    const bool reference = std::string_view(table->name) == "reference";
    const int count = reference ? kReferenceShards : table->memory ? kDeviceShards : kShards;
    for (int i = 0; i < count; i++) all.push_back({table, i});
  }
  return all;
}

class Schedules : public testing::TestWithParam<Shard> {};

TEST_P(Schedules, EqualPlainDecodingBitForBit) {
  const auto [table, index] = GetParam();
  const Subject subject = subject_of(*table);
  const int rides = subject.f32_state ? kRidesOfAWorld : kReferenceRidesOfAWorld;
  for (int i = 0; i < kWorldsOfAShard; i++) {
    const uint64_t seed = 1000 + static_cast<uint64_t>(index) * kWorldsOfAShard + i;
    const auto world = random_world(subject, seed, kLargeWorlds);
    const int steps = world->shape.K * world->shape.V > 4096 ? 10 : 30;
    for (int ride = 0; ride < rides; ride++) {
      for (const std::string& f : random_schedule(*world, seed << 16 | ride, steps))
        ADD_FAILURE() << "world " << seed << ", ride " << ride << ": " << f;
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Schedules, testing::ValuesIn(shards()), [](const auto& info) {
  return fmt::format("{}_{}", info.param.table->name, info.param.index);
});

class ReplaySweep : public testing::TestWithParam<const OpTable*> {
 protected:
  Subject subject() const { return subject_of(*GetParam()); }
};

constexpr Shape kKinds[] = {
    {.Hk = 1, .Hv = 2, .K = 8, .V = 12, .checkpoint = DType::bf16, .record = DType::bf16},
    {.Hk = 1, .Hv = 1, .K = 12, .V = 8, .G = 12, .checkpoint = DType::bf16, .record = DType::f16, .F = 16},
    {.Hk = 1, .Hv = 2, .K = 8, .V = 8, .checkpoint = DType::bf16, .rollback = Rollback::snapshot},
};

TEST_P(ReplaySweep, Field_C14_every_width_from_every_start) {
  for (const Shape& shape : kKinds) {
    const World world(subject(), shape, 1, 135);
    Failures failures = world.failures;
    for (int32_t T = 1; T <= 32 && failures.empty(); T++) {
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
}

// 8192 single steps judged by the oracle, then the same tokens in windows: nothing is added, so the error of
// speculation is that of plain decoding, and that keeps below a bound that does not grow with the distance.
TEST_P(ReplaySweep, Field_B1_B4_long_chains_do_not_drift) {
  for (const Shape& kind : kKinds) {
    for (DType checkpoint : {DType::f32, DType::bf16, DType::f16}) {
      Shape shape = kind;
      shape.checkpoint = checkpoint;
      const World world(subject(), shape, 1, 8193);
      Failures failures = world.failures;
      Driver d(world, 8, ring_rows(world, 8), 1, failures);
      if (d.ok()) d.admit(0, 0);
      for (int i = 0; i < 1024 && d.ok(); i++) d.step({{.seat = 0, .length = 8, .keep = 8}});
      for (const std::string& f : failures) ADD_FAILURE() << f;
      if (!failures.empty()) continue;
      EXPECT_EQ(d.seat(0).tokens, 8192);
      const auto worst = [&](int64_t from, int64_t to) {
        const auto first = world.requests[0].tolerance.begin();
        const int64_t size = shape.Hv * shape.V;
        return *std::max_element(first + from * size, first + to * size);
      };
      EXPECT_LE(worst(7168, 8192), 2 * worst(1024, 2048)) << shape.name();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, ReplaySweep, testing::ValuesIn(backends()),
                         [](const auto& info) { return info.param->name; });

}  // namespace
}  // namespace deltaring::replay
