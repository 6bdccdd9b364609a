#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "spec/schedules.h"

namespace deltaring::test {
namespace {

// 2,000 random schedules: T 1..16, F 8 and 16, every checkpoint dtype, one to three rows, two rounds of requests each.
TEST(P7Full, TwoThousandSchedules) {
  const Weights weights = random_model(mini_config(), 11, DType::bf16);
  std::atomic<uint64_t> next{0};
  std::mutex mutex;
  std::vector<std::string> failures;
  const auto work = [&] {
    for (uint64_t seed; (seed = next++) < 2000;) {
      const std::string failure = run_schedule(weights, schedule_options(seed + 1000), seed + 1000, 40);
      if (failure.empty()) continue;
      std::lock_guard lock(mutex);
      failures.push_back("seed " + std::to_string(seed + 1000) + ": " + failure);
    }
  };
  std::thread second(work);
  work();
  second.join();
  EXPECT_TRUE(failures.empty()) << failures.size() << " of 2000, first " << failures.front();
}

// The double-precision backend obeys the same rule.
TEST(P7Full, ReferenceBackend) {
  const Weights weights = random_model(mini_config(), 12);
  for (uint64_t seed = 0; seed < 20; seed++) {
    RigOptions o = schedule_options(seed);
    o.backend = "reference";
    EXPECT_EQ(run_schedule(weights, o, seed, 30), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace deltaring::test
