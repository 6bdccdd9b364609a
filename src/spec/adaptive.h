// Windows that follow what was accepted: how many drafts to ask for, request by request.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "spec/budget.h"

namespace deltaring {

// Seconds of drafting by the drafts of the request that gets most and by how many requests get some.
class DraftCost {
 public:
  explicit DraftCost(int32_t most) : seconds_(most + 1) {}

  void took(int32_t deepest, int64_t requests, double seconds);
  // What was never measured is taken to cost what the nearest number of requests did, then what the nearest number of
  // drafts did, in proportion; 0 before anything was measured.
  double seconds(int32_t deepest, int64_t requests) const;

 private:
  static constexpr size_t kBuckets = 24;  // of requests, by powers of two
  static size_t bucket(int64_t requests);
  const double* nearest(int32_t deepest, int64_t requests) const;

  std::vector<std::array<double, kBuckets>> seconds_;  // [most + 1], 0 = not measured
};

// Acceptance is estimated at each draft position given that the drafts before it stayed, newer steps counting more; a
// new request starts with the average of all. The drafts asked for are those that make expected tokens a second the
// most, by the cost of a step and the measured time of drafting; none where plain decoding is faster. Then a hundredth
// of the time goes to drafts that are not expected to pay, one for the request that has had none for longest, or a
// change would never be seen. Depends on decided tokens only, so it is lossless.
class AdaptiveWindow {
 public:
  // most: drafts of the widest window.
  AdaptiveWindow(StepCost cost, int32_t most);

  void forget(int32_t seat) { requests_.erase(seat); }
  // [requests] drafts to ask for, at most wanted[r].
  std::vector<int32_t> plan(std::span<const int32_t> seats, std::span<const int32_t> wanted);
  // The drafting of a step took so long: so many requests got drafts, the one with most `deepest`.
  void drafting_took(int32_t deepest, int64_t requests, double seconds);
  // Of the drafts that were verified so many stayed.
  void verified(int32_t seat, int32_t drafts, int32_t accepted);

 private:
  // How likely a draft stays, given those before it; what was seen first counts more than what is seen later.
  struct Rate {
    float chance = 0.7f, seen = 0;  // until something was seen
  };
  struct Request {
    std::vector<Rate> rate;  // [most]
    int32_t idle = 0;        // steps without drafts since the last with some
    double probe = 0;        // seconds that were paid for its draft of the running step
  };
  static void learn(std::vector<Rate>& rates, int32_t drafts, int32_t accepted, float share);
  Request& request(int32_t seat);
  double seconds(int64_t rows, int64_t drafts) const;  // of a step and its drafting
  void probe(std::span<const int32_t> seats, std::span<const int32_t> wanted, std::vector<int32_t>& asked);

  const StepCost cost_;
  const int32_t most_;
  std::vector<Rate> average_;  // [most] over all requests
  DraftCost drafting_;
  double purse_ = 0;                               // seconds that may go to drafts that are not expected to pay
  std::unordered_map<int32_t, Request> requests_;  // by seat
};

}  // namespace deltaring
