// How many drafts of a batch are worth verifying: expected tokens against the measured cost of a step.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "draft/drafter.h"

namespace deltaring {

// Seconds of a verify step by the tokens it verifies, over all rows: measured at some counts, linear between them, flat
// before the first and proportional behind the last.
class StepCost {
 public:
  struct Point {
    int64_t tokens;  // >= 1, ascending
    double seconds;  // > 0
  };

  // Throws Error unless points are as said and at least one. A measured step that takes less than a shorter one is
  // noise: seconds never fall.
  explicit StepCost(std::vector<Point> points);
  double seconds(int64_t tokens) const;
  const std::vector<Point>& points() const { return points_; }

 private:
  std::vector<Point> points_;
};

// Running products of chances: how likely drafts 0..j all stay. In [0, 1], never rising; NaN counts as 0.
std::vector<float> survival_of(std::span<const float> confidence);

// survival [requests][drafts], never rising along a request: all drafts that survive with at least 1e-6, likeliest
// first, ties by position, then by request.
struct RankedDraft {
  float survival;
  size_t position, request;
};
std::vector<RankedDraft> ranked(std::span<const std::vector<float>> survival);

// The number of drafts m over all requests that makes (requests + the sum of the m largest survivals) / seconds(m) the
// largest; the fewest of equals.
int64_t draft_budget(std::span<const std::vector<float>> survival, const std::function<double(int64_t)>& seconds);

// Drafts of each request when the `budget` likeliest go.
std::vector<int32_t> admit(std::span<const std::vector<float>> survival, int64_t budget);

// Drafts that each request of a batch verifies. Lossless for drawn drafts: whether draft j of a request goes must not
// depend on what was drawn at j or behind it. The budget comes from confidences of the step before, whose coins are
// other ones, and from the drafts that were asked for; the rank of a draft comes from the confidences up to it.
class VerifyScheduler {
 public:
  explicit VerifyScheduler(StepCost cost) : cost_(std::move(cost)) {}

  void forget(int32_t seat) { last_.erase(seat); }  // a new request: its drafts are counted on until it has been seen
  // [requests] at most as many as proposed.
  std::vector<int32_t> plan(std::span<const DraftRequest> requests, std::span<const Proposal> proposals);

 private:
  StepCost cost_;
  std::unordered_map<int32_t, std::vector<float>> last_;  // by seat: survival in its last step with drafts
};

}  // namespace deltaring
