// Windows that follow what was accepted: how many drafts to ask for, request by request.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "spec/budget.h"
#include "spec/draft_cost.h"

namespace deltaring {

// Acceptance is estimated at each draft position given that the drafts before it stayed, newer steps counting more; a
// new request starts with the average of all. The drafts asked for are those that make expected tokens a second the
// most, by the cost of a step and the measured time of drafting, in which the context rows count that a request has
// waiting; none where plain decoding is faster.
//
// What drafts have brought and taken is kept in an account, which gets 1 % of the time and holds at most 32 plain
// steps: nothing is asked while it is overdrawn. So whatever is wrong with the estimates, little more than that is
// lost, and what drafts have earned takes them through a while in which they do not pay. 0.5 % of the time and a 256th
// of the account each step go to drafts that are not expected to pay, one for the request that has had none for
// longest, or a change would never be seen.
//
// After 1, 2, 4, .. 64 steps with drafts two go without, or all would rest on one measurement of a plain step. They
// find caches full of the drafter, which plain decoding does not: the first of them does not count, and while there are
// few the others count only if they took less than was known, which is the table at first.
//
// The context of a request without drafts is written when no more rows may wait, unless that takes more than
// 0.5 % of the time and more than the account has: then the request is let go, and the drafter need not be told of
// it any more. Depends on decided tokens and measured times only, so it is lossless.
class AdaptiveWindow {
 public:
  // most: drafts of the widest window.
  AdaptiveWindow(StepCost cost, int32_t most);

  void forget(int32_t seat) { requests_.erase(seat); }  // a new request

  // Of one request in one step.
  struct Ask {
    int32_t drafts = 0;
    bool context = false;  // what waits is to be written: there are drafts, or no more may wait
  };
  // [requests] asks for at most wanted[r] drafts; waiting[r] context rows wait.
  std::vector<Ask> plan(std::span<const int32_t> seats, std::span<const int32_t> wanted,
                        std::span<const int64_t> waiting);
  bool let_go(int32_t seat) { return request(seat).let_go; }
  // In the step so many context rows were written, in so long.
  void writing_took(int64_t rows, double seconds);
  // The drafting of a step took so long: so many requests got drafts, the one with most `deepest`.
  void drafting_took(int32_t deepest, int64_t requests, double seconds);
  // All the rest of the step took so long, behind verified() of all its requests. What it takes with and without drafts
  // is the table's, corrected by that.
  void verifying_took(double seconds);
  // So many drafts were verified. Of the first `known` of them, behind which nothing was decided, so many stayed.
  void verified(int32_t seat, int32_t drafts, int32_t known, int32_t accepted);

 private:
  // How likely a draft stays, given those before it; what was seen first counts more than what is seen later.
  struct Rate {
    float chance = 0.7f, seen = 0;  // until something was seen
  };
  struct Request {
    std::vector<Rate> rate;  // [most]
    int32_t idle = 0;        // steps without drafts since the last with some
    double probe = 0;        // seconds that were paid for its draft of the running step
    bool let_go = false;
  };
  // What a step is to do, or did.
  struct Load {
    int64_t rows = 0, drafts = 0;
    int64_t requests = 0, waiting = 0;  // that get drafts, and their context rows that wait
    int32_t deepest = 0;                // drafts of the one that gets most

    // The next draft of a request.
    void add(size_t position, int64_t rows_waiting) {
      drafts++;
      if (position == 0) requests++, waiting += rows_waiting;
      deepest = std::max(deepest, static_cast<int32_t>(position) + 1);
    }
  };
  // What steps took, as parts of what the table says of them.
  struct Correction {
    Taken plain, drafted;
    int32_t in_a_row = 0, most_drafted = 1;  // steps with drafts since a plain one counted, and so many there may be
    bool due() const { return in_a_row >= most_drafted; }
  };
  static void learn(std::vector<Rate>& rates, int32_t drafts, int32_t accepted, float share);
  Request& request(int32_t seat);
  double verifying(int64_t rows, int64_t drafts) const;
  double seconds(const Load& load) const;  // of a step and its drafting
  // Whether drafting cannot take a surprising time, or a surprise would be small.
  bool known(const Load& load) const { return load.deepest <= drafting_.limit(load.requests); }
  // Whether the running step goes without drafts, whatever they promise.
  bool barred() const { return account_ < 0 || correction_[bucket_of(last_.rows)].due(); }
  double token() const;  // seconds of plain decoding that a token of the step is worth
  std::vector<RankedDraft> candidates(std::span<const int32_t> seats, std::span<const int32_t> wanted);
  // Drafts of each request that make tokens a second the most, as far as that is known; what it comes to in load.
  std::vector<Ask> fastest(std::span<const RankedDraft> drafts, std::span<const int64_t> waiting, Load& load) const;
  void explore(std::span<const int32_t> seats, std::span<const int32_t> wanted, std::span<const int64_t> waiting,
               const Load& load, std::vector<Ask>& asked);
  // Of the requests without drafts whose wait is full: which to write for, which to let go.
  void keep(std::span<const int32_t> seats, std::span<const int64_t> waiting, const Load& load,
            std::vector<Ask>& asked);

  static constexpr int32_t kSettled = 4;  // steps without drafts, behind which caches are those of plain decoding

  const StepCost cost_;
  std::array<Correction, kBuckets> correction_;  // by rows
  const int32_t most_;
  std::vector<Rate> average_;  // [most] over all requests
  DraftCost drafting_;
  DraftCost writing_;                              // context rows, in place of requests
  Load last_;                                      // rows of the running step, drafts that it verified
  int32_t plain_in_a_row_ = kSettled;              // steps before it without drafts, so many at most
  double account_;                                 // seconds
  double purse_;                                   // seconds that may go to drafts that are not expected to pay
  std::unordered_map<int32_t, Request> requests_;  // by seat
};

}  // namespace deltaring
