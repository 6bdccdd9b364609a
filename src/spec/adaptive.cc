#include "spec/adaptive.h"

#include <algorithm>
#include <cmath>

namespace deltaring {

namespace {

constexpr float kFirstRate = 0.7f;          // until something was seen
constexpr float kRequestShare = 1.0f / 16;  // weight of the newest step
constexpr float kAverageShare = 1.0f / 128;
constexpr double kDraftingShare = 1.0 / 8;
constexpr int32_t kProbeEvery = 64;  // steps without drafts, behind which one is asked for

// A window that stayed whole says nothing about the draft behind it, but that it may be as good as the last one.
void learn(std::vector<float>& rate, int32_t drafts, int32_t accepted, float share) {
  for (int32_t j = 0; j < drafts && j <= accepted; j++) rate[j] += share * ((j < accepted ? 1.0f : 0.0f) - rate[j]);
  const auto next = static_cast<size_t>(drafts);
  if (drafts > 0 && accepted == drafts && next < rate.size()) {
    rate[next] += share * std::max(0.0f, rate[next - 1] - rate[next]);
  }
}

}  // namespace

AdaptiveWindow::AdaptiveWindow(StepCost cost, int32_t most)
    : cost_(std::move(cost)), most_(most), average_(most, kFirstRate), draft_seconds_(most + 1) {}

AdaptiveWindow::Request& AdaptiveWindow::request(int32_t seat) {
  return requests_.try_emplace(seat, Request{.rate = average_}).first->second;
}

// A number of drafts that was never asked for is taken to cost what the nearest one did, in proportion.
double AdaptiveWindow::drafting(int32_t asked) const {
  for (int32_t distance = 0; asked > 0 && distance <= most_; distance++) {
    for (const int32_t near : {asked - distance, asked + distance}) {
      if (near < 1 || near > most_ || draft_seconds_[near] == 0) continue;
      return draft_seconds_[near] * asked / near;
    }
  }
  return 0;
}

std::vector<int32_t> AdaptiveWindow::plan(std::span<const int32_t> seats, std::span<const int32_t> wanted) {
  const auto rows = static_cast<int64_t>(seats.size());
  std::vector<std::vector<float>> survival;
  for (size_t r = 0; r < seats.size(); r++) {
    const std::vector<float>& rate = request(seats[r]).rate;
    survival.push_back(survival_of(std::span(rate).first(static_cast<size_t>(std::clamp(wanted[r], 0, most_)))));
  }
  const auto seconds = [&](int64_t drafts) {
    const auto deepest = static_cast<int32_t>(std::min<int64_t>((drafts + rows - 1) / rows, most_));
    return cost_.seconds(rows + drafts) + drafting(deepest);
  };
  std::vector<int32_t> asked = admit(survival, draft_budget(survival, seconds));
  for (size_t r = 0; r < seats.size(); r++) {
    int32_t& idle = request(seats[r]).idle;
    if (asked[r] == 0 && wanted[r] > 0 && ++idle >= kProbeEvery) asked[r] = std::min(1, most_);
    if (asked[r] > 0) idle = 0;
  }
  return asked;
}

void AdaptiveWindow::drafting_took(int32_t asked, double seconds) {
  if (asked < 1 || asked > most_) return;
  double& known = draft_seconds_[asked];
  known = known == 0 ? seconds : known + kDraftingShare * (seconds - known);
}

void AdaptiveWindow::verified(int32_t seat, int32_t drafts, int32_t accepted) {
  learn(request(seat).rate, drafts, accepted, kRequestShare);
  learn(average_, drafts, accepted, kAverageShare);
}

}  // namespace deltaring
