#include "base/threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace deltaring {
namespace {

class Threads : public testing::TestWithParam<int> {};

TEST_P(Threads, RunsEveryIndexOnce) {
  ThreadPool pool(GetParam());
  for (int64_t count : {0, 1, 2, 3, 7, 64, 10'000}) {
    std::vector<std::atomic<int>> visits(count);
    pool.parallel_for(count, [&](int64_t i) { visits.at(i)++; });
    for (const auto& n : visits) ASSERT_EQ(n, 1);
  }
}

TEST_P(Threads, NoIndexWhenTheCountIsNegative) {
  ThreadPool pool(GetParam());
  pool.parallel_for(-3, [](int64_t i) { FAIL() << i; });
}

TEST_P(Threads, ManyTinyLoops) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> sums(5);
  int64_t expected = 0;
  for (int64_t loop = 0; loop < 200; loop++) {
    const int64_t count = 1 + loop % 5;  // one index runs without the workers, the next loop with them
    pool.parallel_for(count, [&](int64_t i) { sums[i] += loop; });
    expected += count * loop;
  }
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), expected);
}

TEST_P(Threads, WritesOfBodiesAreVisibleAfterTheLoop) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(1000);
  for (int64_t round = 1; round <= 20; round++) {
    pool.parallel_for(1000, [&](int64_t i) { values[i] += i * round; });
  }
  for (int64_t i = 0; i < 1000; i++) ASSERT_EQ(values[i], i * 20 * 21 / 2);
}

TEST_P(Threads, AnExceptionComesOutAfterAllIndicesAndThePoolStaysUsable) {
  ThreadPool pool(GetParam());
  for (int64_t count : {1, 100}) {
    for (int round = 0; round < 5; round++) {
      std::atomic<int64_t> ran = 0;
      const auto body = [&](int64_t i) {
        ran++;
        if (i == count / 2) throw std::runtime_error("body " + std::to_string(i));
      };
      try {
        pool.parallel_for(count, body);
        FAIL() << "nothing was thrown";
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(error.what(), "body " + std::to_string(count / 2));
      }
      EXPECT_EQ(ran, count);
      ran = 0;
      EXPECT_NO_THROW(pool.parallel_for(count, [&](int64_t) { ran++; }));
      EXPECT_EQ(ran, count);
    }
  }
}

TEST_P(Threads, OneOfManyExceptionsComesOut) {
  ThreadPool pool(GetParam());
  std::atomic<int> ran = 0;
  const auto body = [&](int64_t) {
    ran++;
    throw std::out_of_range("every body");
  };
  EXPECT_THROW(pool.parallel_for(50, body), std::out_of_range);
  EXPECT_EQ(ran, 50);
  EXPECT_NO_THROW(pool.parallel_for(50, [](int64_t) {}));
}

TEST_P(Threads, SizeCountsTheCaller) { EXPECT_EQ(ThreadPool(GetParam()).size(), GetParam()); }

INSTANTIATE_TEST_SUITE_P(Sizes, Threads, testing::Values(1, 2, 4));

TEST(ThreadPool, ZeroMeansOnePerCore) {
  EXPECT_EQ(ThreadPool(0).size(), std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
}

TEST(ThreadPool, AllThreadsTakePart) {
  ThreadPool pool(3);
  std::atomic<int> here = 0;
  // Ends only when three bodies run at the same time.
  pool.parallel_for(3, [&](int64_t) {
    here++;
    while (here < 3) std::this_thread::yield();
  });
  EXPECT_EQ(here, 3);
}

TEST(ThreadPool, StartsAndEndsIdleOrUsed) {
  for (int i = 0; i < 100; i++) {
    ThreadPool pool(1 + i % 4);
    if (i % 2) pool.parallel_for(4, [](int64_t) {});
  }
}

TEST(ThreadPool, RefusesImpossibleSizes) {
  for (int threads : {-1, 1025}) {
    try {
      ThreadPool pool(threads);
      FAIL() << threads;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(std::to_string(threads)), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace deltaring
