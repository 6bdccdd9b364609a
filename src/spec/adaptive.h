// Windows that follow what was accepted: how many drafts to ask for, request by request.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "spec/budget.h"

namespace deltaring {

// Acceptance is estimated at each draft position given that the drafts before it stayed, newer steps counting more; a
// new request starts with the average of all. The drafts asked for are those that make expected tokens a second the
// most, by the cost of a step and the measured time of drafting; none where plain decoding is faster. Then now and then
// a few are asked for all the same, or a change would never be seen. Depends on decided tokens only, so it is lossless.
class AdaptiveWindow {
 public:
  // most: drafts of the widest window.
  AdaptiveWindow(StepCost cost, int32_t most);

  void forget(int32_t seat) { requests_.erase(seat); }
  // [requests] drafts to ask for, at most wanted[r].
  std::vector<int32_t> plan(std::span<const int32_t> seats, std::span<const int32_t> wanted);
  // The drafting of a step, `asked` drafts for the request that got most, took so long.
  void drafting_took(int32_t asked, double seconds);
  // Of the drafts that were verified so many stayed.
  void verified(int32_t seat, int32_t drafts, int32_t accepted);

 private:
  struct Request {
    std::vector<float> rate;  // [most] chance that draft j stays given those before it
    int32_t idle = 0;         // steps without drafts since the last with some
  };
  Request& request(int32_t seat);
  double drafting(int32_t asked) const;

  const StepCost cost_;
  const int32_t most_;
  std::vector<float> average_;                     // [most] rates over all requests
  std::vector<double> draft_seconds_;              // [most + 1] by drafts asked for, 0 = not measured
  std::unordered_map<int32_t, Request> requests_;  // by seat
};

}  // namespace deltaring
