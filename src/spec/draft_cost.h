// What drafting takes, measured step by step.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace deltaring {

// Seconds that something takes, by measurements of which some were disturbed.
class Taken {
 public:
  // Returns what of them is believed.
  double saw(double seconds);
  double seconds() const { return known_; }  // 0: not measured
  double seconds_or(double unknown) const { return measured() ? known_ : unknown; }
  bool measured() const { return known_ > 0; }

 private:
  double known_ = 0, times_ = 0;
};

inline constexpr size_t kBuckets = 24;
size_t bucket_of(int64_t count);  // by powers of two

// Seconds of drafting by the drafts of the request that gets most and by how many requests get some.
class DraftCost {
 public:
  explicit DraftCost(int32_t most) : taken_(static_cast<size_t>(most)) {}

  // deepest in [1, most], requests >= 1. Returns what of the seconds is believed.
  double took(int32_t deepest, int64_t requests, double seconds);
  // What was not measured is taken to cost what the nearest number of requests and then of drafts did, of more drafts
  // rather than of fewer; 0 before anything was measured.
  double seconds(int32_t deepest, int64_t requests) const;
  // Drafts that so many requests may be asked for: twice as many as half the requests were, so that a cost that grows
  // with either is found out step by step. One draft of one request at first.
  int32_t limit(int64_t requests) const;

 private:
  std::vector<std::array<Taken, kBuckets>> taken_;  // [most][requests]
  std::array<int32_t, kBuckets> deepest_{};         // that was measured
};

}  // namespace deltaring
