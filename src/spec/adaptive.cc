#include "spec/adaptive.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace deltaring {

namespace {

constexpr float kFirst = 3;                 // what is known at first counts as if it had been seen so often
constexpr float kRequestShare = 1.0f / 16;  // least weight of the newest step
constexpr float kAverageShare = 1.0f / 128;
constexpr double kDraftingShare = 1.0 / 8, kFasterShare = 1.0 / 2;  // what takes longer is more often an accident
constexpr double kOutlier = 2;  // a step that took longer than so many times what is known says no more than that
constexpr double kForget = 1.0 / 64;
constexpr double kProbeShare = 0.01;  // of the time, for drafts that are not expected to pay
constexpr double kPurse = 4;          // probes that it holds at most

}  // namespace

size_t DraftCost::bucket(int64_t requests) {
  return std::min<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(requests, 1))) - 1, kBuckets - 1);
}

const double* DraftCost::nearest(int32_t deepest, int64_t requests) const {
  const auto at = static_cast<int64_t>(bucket(requests)), buckets = static_cast<int64_t>(kBuckets);
  for (int64_t distance = 0; distance < buckets; distance++) {
    for (const int64_t near : {at + distance, at - distance}) {
      if (near < 0 || near >= buckets) continue;
      const double& known = seconds_[deepest][near];
      if (known > 0) return &known;
    }
  }
  return nullptr;
}

void DraftCost::took(int32_t deepest, int64_t requests, double seconds) {
  if (deepest < 1 || deepest >= static_cast<int32_t>(seconds_.size()) || requests < 1) return;
  double& known = seconds_[deepest][bucket(requests)];
  const double share = seconds < known ? kFasterShare : kDraftingShare;
  known = known == 0 ? seconds : known + share * (std::min(seconds, kOutlier * known) - known);
  // What has not been tried for long is taken to cost no more than in proportion, little by little.
  for (int32_t d = 1; d < static_cast<int32_t>(seconds_.size()); d++) {
    double& other = seconds_[d][bucket(requests)];
    other -= kForget * std::max(0.0, other - known * d / deepest);
  }
}

double DraftCost::seconds(int32_t deepest, int64_t requests) const {
  const auto most = static_cast<int32_t>(seconds_.size()) - 1;
  for (int32_t distance = 0; deepest > 0 && distance <= most; distance++) {
    for (const int32_t near : {deepest - distance, deepest + distance}) {
      const double* known = near < 1 || near > most ? nullptr : nearest(near, requests);
      if (known) return *known * deepest / near;
    }
  }
  return 0;
}

AdaptiveWindow::AdaptiveWindow(StepCost cost, int32_t most)
    : cost_(std::move(cost)), most_(most), average_(most), drafting_(most) {}

// A window that stayed whole says nothing about the draft behind it, but that it may be as good as the last one.
void AdaptiveWindow::learn(std::vector<Rate>& rates, int32_t drafts, int32_t accepted, float share) {
  for (int32_t j = 0; j < drafts && j <= accepted; j++) {
    Rate& rate = rates[j];
    rate.seen++;
    rate.chance += std::max(share, 1 / (rate.seen + kFirst)) * ((j < accepted ? 1.0f : 0.0f) - rate.chance);
  }
  const auto next = static_cast<size_t>(drafts);
  if (drafts > 0 && accepted == drafts && next < rates.size()) {
    rates[next].chance += share * std::max(0.0f, rates[next - 1].chance - rates[next].chance);
  }
}

AdaptiveWindow::Request& AdaptiveWindow::request(int32_t seat) {
  const auto [at, is_new] = requests_.try_emplace(seat, Request{.rate = average_});
  if (is_new) {
    for (Rate& rate : at->second.rate) rate.seen = 0;
  }
  return at->second;
}

double AdaptiveWindow::seconds(int64_t rows, int64_t drafts) const {
  const auto deepest = static_cast<int32_t>(std::min<int64_t>((drafts + rows - 1) / rows, most_));
  return cost_.seconds(rows + drafts) + drafting_.seconds(deepest, std::min(rows, drafts));
}

std::vector<int32_t> AdaptiveWindow::plan(std::span<const int32_t> seats, std::span<const int32_t> wanted) {
  const auto rows = static_cast<int64_t>(seats.size());
  std::vector<std::vector<float>> survival;
  for (size_t r = 0; r < seats.size(); r++) {
    std::vector<float> chances;
    for (const Rate& rate : request(seats[r]).rate) chances.push_back(rate.chance);
    survival.push_back(survival_of(std::span(chances).first(static_cast<size_t>(std::clamp(wanted[r], 0, most_)))));
  }
  std::vector<int32_t> asked =
      admit(survival, draft_budget(survival, [&](int64_t drafts) { return seconds(rows, drafts); }));
  probe(seats, wanted, asked);
  return asked;
}

void AdaptiveWindow::probe(std::span<const int32_t> seats, std::span<const int32_t> wanted,
                           std::vector<int32_t>& asked) {
  const auto rows = static_cast<int64_t>(seats.size());
  const int64_t drafts = std::accumulate(asked.begin(), asked.end(), int64_t{0});
  size_t longest = seats.size();
  for (size_t r = 0; r < seats.size(); r++) {
    Request& own = request(seats[r]);
    own.probe = 0;
    own.idle = asked[r] > 0 ? 0 : own.idle + 1;
    if (asked[r] > 0 || wanted[r] < 1 || most_ < 1) continue;
    if (longest == seats.size() || own.idle > request(seats[longest]).idle) longest = r;
  }
  if (longest == seats.size()) return;
  const double now = seconds(rows, drafts), price = std::max(0.0, seconds(rows, drafts + 1) - now);
  purse_ = std::min(purse_ + kProbeShare * now, kPurse * price);
  if (purse_ < price) return;
  purse_ -= price;
  asked[longest] = 1;
  request(seats[longest]).idle = 0;
  request(seats[longest]).probe = price;
}

void AdaptiveWindow::drafting_took(int32_t deepest, int64_t requests, double seconds) {
  drafting_.took(deepest, requests, seconds);
}

void AdaptiveWindow::verified(int32_t seat, int32_t drafts, int32_t accepted) {
  Request& own = request(seat);
  learn(own.rate, drafts, accepted, kRequestShare);
  if (accepted > 0) purse_ += own.probe;  // it paid: ask on
  learn(average_, drafts, accepted, kAverageShare);
}

}  // namespace deltaring
