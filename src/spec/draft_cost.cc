#include "spec/draft_cost.h"

#include <algorithm>
#include <bit>

namespace deltaring {

namespace {

// Least share of the newest: faster or slower alike, so that sums of what is known agree.
constexpr double kShare = 1.0 / 8;
constexpr double kOutlier = 2;  // what took longer than so many times what is known says no more than that

}  // namespace

double Taken::saw(double seconds) {
  times_++;
  if (!measured()) return known_ = seconds;
  if (kOutlier * seconds < known_) return known_ = seconds;  // what was known was an accident
  const double believed = std::min(seconds, kOutlier * known_);
  known_ += std::max(kShare, 1 / times_) * (believed - known_);
  return believed;
}

size_t bucket_of(int64_t count) {
  return std::min<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(count, 1))) - 1, kBuckets - 1);
}

double DraftCost::took(int32_t deepest, int64_t requests, double seconds) {
  const size_t b = bucket_of(requests);
  deepest_[b] = std::max(deepest_[b], deepest);
  return taken_[static_cast<size_t>(deepest) - 1][b].saw(seconds);
}

double DraftCost::seconds(int32_t deepest, int64_t requests) const {
  if (deepest < 1 || requests < 1) return 0;
  const auto at = static_cast<int64_t>(bucket_of(requests)), buckets = static_cast<int64_t>(kBuckets);
  for (int64_t distance = 0; distance < buckets; distance++) {
    for (const int64_t near : {at + distance, at - distance}) {
      if (near < 0 || near >= buckets || deepest_[near] == 0) continue;
      // More drafts never take less, and the least of them was disturbed least.
      double least = taken_[deepest_[near] - 1][near].seconds();
      for (int32_t d = deepest; d < deepest_[near]; d++) {
        if (const Taken& taken = taken_[d - 1][near]; taken.measured()) least = std::min(least, taken.seconds());
      }
      return least;
    }
  }
  return 0;
}

int32_t DraftCost::limit(int64_t requests) const {
  const size_t half = bucket_of(std::max<int64_t>(requests / 2, 1));
  const int32_t deepest = *std::max_element(deepest_.begin() + static_cast<std::ptrdiff_t>(half), deepest_.end());
  return std::max(2 * deepest, requests == 1 ? 1 : 0);
}

}  // namespace deltaring
