#include "spec/measure_cost.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace deltaring {

namespace {

// The least of some runs, of which two agree: on a busy machine most take too long.
template <class Step>
double least_seconds(const Step& step) {
  using Clock = std::chrono::steady_clock;
  constexpr int kLeastRuns = 3, kMostRuns = 12;
  constexpr double kAgree = 1.1;
  double seconds = INFINITY, second = INFINITY;
  for (int run = 0; run < kMostRuns && (run < kLeastRuns || second > kAgree * seconds); run++) {
    const Clock::time_point begin = Clock::now();
    step();
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    second = std::min(second, std::max(seconds, took));
    seconds = std::min(seconds, took);
  }
  return std::max(seconds, 1e-9);
}

}  // namespace

StepCost measure_cost(HybridModel& model, StatePool& pool, View<2> hidden, View<2> logits) {
  const int64_t T = pool.options().ring.T;
  std::vector<int32_t> seats;
  while (pool.free_seats() > 0) {
    seats.push_back(pool.allocate());
    if (pool.reserve(seats.back(), T)) continue;
    pool.free(seats.back()), seats.pop_back();
    break;
  }
  const int64_t most = T * static_cast<int64_t>(seats.size());
  const std::vector<int64_t> zeros(seats.size());
  const std::vector<int32_t> ids(static_cast<size_t>(most));
  std::vector<StepCost::Point> points;
  for (int64_t tokens = 1, done = 0; done < most; done = tokens, tokens = std::min(2 * tokens, most)) {
    std::vector<int32_t> start{0};
    while (start.back() < tokens) start.push_back(static_cast<int32_t>(std::min(tokens, start.back() + T)));
    const Rows rows{.count = static_cast<int32_t>(start.size()) - 1,
                    .start = start.data(),
                    .seat = seats.data(),
                    .first = zeros.data(),
                    .folded = zeros.data(),
                    .fold_to = zeros.data()};
    points.push_back({.tokens = tokens, .seconds = least_seconds([&] {
                                          model.forward(rows, ids.data(), false, pool, hidden.rows(0, tokens));
                                          model.logits(hidden.rows(0, tokens), logits.rows(0, tokens));
                                        })});
  }
  for (const int32_t seat : seats) pool.free(seat);
  check(!points.empty(),
        "--context-length: no room for a window of {} tokens, of which a step was to be timed; {} works", T, 2 * T);
  return StepCost(std::move(points));
}

}  // namespace deltaring
