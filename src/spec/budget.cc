#include "spec/budget.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace deltaring {

namespace {

constexpr float kLeastSurvival = 1e-6f;

}  // namespace

StepCost::StepCost(std::vector<Point> points) : points_(std::move(points)) {
  check(!points_.empty(), "the cost of a step was measured at no number of tokens; one works");
  for (size_t i = 0; i < points_.size(); i++) {
    Point& p = points_[i];
    check(p.tokens > (i ? points_[i - 1].tokens : 0) && p.seconds > 0 && std::isfinite(p.seconds),
          "the cost of a step: {} tokens take {} s; ascending tokens >= 1 and seconds > 0 work", p.tokens, p.seconds);
    if (i) p.seconds = std::max(p.seconds, points_[i - 1].seconds);
  }
}

double StepCost::seconds(int64_t tokens) const {
  const auto behind = std::find_if(points_.begin(), points_.end(), [=](const Point& p) { return p.tokens >= tokens; });
  if (behind == points_.begin()) return behind->seconds;
  if (behind == points_.end()) {
    const Point& last = points_.back();
    return last.seconds * static_cast<double>(tokens) / static_cast<double>(last.tokens);
  }
  const Point &low = behind[-1], &high = *behind;
  const double share = static_cast<double>(tokens - low.tokens) / static_cast<double>(high.tokens - low.tokens);
  return low.seconds + share * (high.seconds - low.seconds);
}

std::vector<float> survival_of(std::span<const float> confidence) {
  std::vector<float> survival;
  float product = 1;
  for (const float c : confidence) survival.push_back(product *= c > 0 ? std::min(c, 1.0f) : 0);
  return survival;
}

std::vector<RankedDraft> ranked(std::span<const std::vector<float>> survival) {
  std::vector<RankedDraft> all;
  for (size_t r = 0; r < survival.size(); r++) {
    for (size_t j = 0; j < survival[r].size() && survival[r][j] >= kLeastSurvival; j++) {
      all.push_back({.survival = survival[r][j], .position = j, .request = r});
    }
  }
  std::sort(all.begin(), all.end(), [](const RankedDraft& a, const RankedDraft& b) {
    if (a.survival != b.survival) return a.survival > b.survival;
    return a.position != b.position ? a.position < b.position : a.request < b.request;
  });
  return all;
}

int64_t draft_budget(std::span<const std::vector<float>> survival, const std::function<double(int64_t)>& seconds) {
  double tokens = static_cast<double>(survival.size()), best = tokens / seconds(0);
  int64_t budget = 0, drafts = 0;
  for (const RankedDraft& c : ranked(survival)) {
    tokens += c.survival;
    drafts++;
    if (const double rate = tokens / seconds(drafts); rate > best) best = rate, budget = drafts;
  }
  return budget;
}

std::vector<int32_t> admit(std::span<const std::vector<float>> survival, int64_t budget) {
  std::vector<int32_t> drafts(survival.size());
  for (const RankedDraft& c : ranked(survival)) {
    if (budget-- <= 0) break;
    drafts[c.request]++;
  }
  return drafts;
}

std::vector<int32_t> VerifyScheduler::plan(std::span<const DraftRequest> requests,
                                           std::span<const Proposal> proposals) {
  std::vector<std::vector<float>> expected, actual;
  for (size_t r = 0; r < requests.size(); r++) {
    std::vector<float>& last = last_[requests[r].seat];
    expected.push_back(last);
    expected.back().resize(static_cast<size_t>(requests[r].drafts), last.empty() ? 1 : last.back());
    actual.push_back(survival_of(proposals[r].confidence));
    if (!actual.back().empty()) last = actual.back();
  }
  const auto rows = static_cast<int64_t>(requests.size());
  const int64_t budget = draft_budget(expected, [&](int64_t drafts) { return cost_.seconds(rows + drafts); });
  return admit(actual, budget);
}

}  // namespace deltaring
