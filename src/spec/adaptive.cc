#include "spec/adaptive.h"

#include <algorithm>

#include "draft/pending_rows.h"

namespace deltaring {

namespace {

constexpr float kFirst = 3;            // what is known at first counts as if it had been seen so often
constexpr float kRequestShare = 0.1f;  // least weight of the newest step: text repeats itself by turns
constexpr float kAverageShare = 1.0f / 128;
constexpr double kShare = 0.005;                  // of the time: for drafts not expected to pay, and for context
constexpr double kEarned = 1.0 / 256;             // of the account, a step: for such drafts too
constexpr double kPurse = 4;                      // such drafts that it is saved for at most
constexpr double kFirstCredit = 3, kCredit = 32;  // plain steps: of one request at first, of all at most
constexpr int32_t kMostDrafted = 64;              // steps with drafts from one without to the next

}  // namespace

AdaptiveWindow::AdaptiveWindow(StepCost cost, int32_t most)
    : cost_(std::move(cost)),
      most_(most),
      average_(most),
      drafting_(most),
      writing_(1),
      account_(kFirstCredit * cost_.seconds(1)),
      purse_(account_) {}

// A window that stayed whole says nothing about the draft behind it, but that it may be as good as the last one, which
// is all that is known of a draft that was never seen.
void AdaptiveWindow::learn(std::vector<Rate>& rates, int32_t drafts, int32_t accepted, float share) {
  for (int32_t j = 0; j < drafts && j <= accepted; j++) {
    Rate& rate = rates[j];
    rate.seen++;
    rate.chance += std::max(share, 1 / (rate.seen + kFirst)) * ((j < accepted ? 1.0f : 0.0f) - rate.chance);
  }
  const auto next = static_cast<size_t>(drafts);
  if (drafts > 0 && accepted == drafts && next < rates.size()) {
    Rate& rate = rates[next];
    rate.chance += (rate.seen > 0 ? share : 1) * std::max(0.0f, rates[next - 1].chance - rate.chance);
  }
}

AdaptiveWindow::Request& AdaptiveWindow::request(int32_t seat) {
  const auto [at, is_new] = requests_.try_emplace(seat, Request{.rate = average_});
  if (is_new) {
    for (Rate& rate : at->second.rate) rate.seen = std::min(rate.seen, 1.0f);
  }
  return at->second;
}

double AdaptiveWindow::verifying(int64_t rows, int64_t drafts) const {
  const Correction& c = correction_[bucket_of(rows)];
  const double plain = c.plain.seconds_or(1);
  return cost_.seconds(rows + drafts) * (drafts > 0 ? c.drafted.seconds_or(plain) : plain);
}

double AdaptiveWindow::seconds(const Load& load) const {
  return verifying(load.rows, load.drafts) + drafting_.seconds(load.deepest, load.requests) +
         writing_.seconds(1, load.waiting);
}

double AdaptiveWindow::token() const {
  return last_.rows ? verifying(last_.rows, 0) / static_cast<double>(last_.rows) : 0;
}

std::vector<RankedDraft> AdaptiveWindow::candidates(std::span<const int32_t> seats, std::span<const int32_t> wanted) {
  std::vector<std::vector<float>> survival;
  for (size_t r = 0; r < seats.size(); r++) {
    const Request& own = request(seats[r]);
    const int32_t drafts = own.let_go ? 0 : std::clamp(wanted[r], 0, most_);
    std::vector<float> chances;
    for (int32_t j = 0; j < drafts; j++) chances.push_back(own.rate[j].chance);
    survival.push_back(survival_of(chances));
  }
  return ranked(survival);
}

std::vector<AdaptiveWindow::Ask> AdaptiveWindow::fastest(std::span<const RankedDraft> drafts,
                                                         std::span<const int64_t> waiting, Load& load) const {
  double tokens = static_cast<double>(load.rows), rate = tokens / seconds(load);
  size_t best = 0;
  Load all = load;
  for (size_t i = 0; i < drafts.size(); i++) {
    all.add(drafts[i].position, waiting[drafts[i].request]), tokens += drafts[i].survival;
    if (tokens / seconds(all) > rate) rate = tokens / seconds(all), best = i + 1;
  }
  std::vector<Ask> asked(waiting.size());
  for (size_t i = 0; i < best; i++) {
    Load more = load;
    more.add(drafts[i].position, waiting[drafts[i].request]);
    Ask& ask = asked[drafts[i].request];
    if (static_cast<size_t>(ask.drafts) < drafts[i].position || !known(more)) continue;
    ask.drafts++, ask.context = true, load = more;
  }
  return asked;
}

std::vector<AdaptiveWindow::Ask> AdaptiveWindow::plan(std::span<const int32_t> seats, std::span<const int32_t> wanted,
                                                      std::span<const int64_t> waiting) {
  last_ = {.rows = static_cast<int64_t>(seats.size())};
  Load load = last_;
  std::vector<Ask> asked(seats.size());
  if (!barred()) asked = fastest(candidates(seats, wanted), waiting, load);
  explore(seats, wanted, waiting, load, asked);
  keep(seats, waiting, load, asked);
  return asked;
}

void AdaptiveWindow::explore(std::span<const int32_t> seats, std::span<const int32_t> wanted,
                             std::span<const int64_t> waiting, const Load& load, std::vector<Ask>& asked) {
  size_t longest = seats.size();
  for (size_t r = 0; r < seats.size(); r++) {
    Request& own = request(seats[r]);
    own.probe = 0;
    own.idle = asked[r].drafts > 0 ? 0 : own.idle + 1;
    if (asked[r].drafts > 0 || own.let_go || wanted[r] < 1 || most_ < 1) continue;
    if (longest == seats.size() || own.idle > request(seats[longest]).idle) longest = r;
  }
  if (longest == seats.size()) return;
  Load more = load;
  more.add(0, waiting[longest]);
  const double now = seconds(load), price = std::max(0.0, seconds(more) - now);
  purse_ = std::min(purse_ + kShare * now + kEarned * std::max(account_, 0.0), kPurse * price);
  if (purse_ < price || barred() || !known(more)) return;
  Request& own = request(seats[longest]);
  purse_ -= price;
  asked[longest] = {.drafts = 1, .context = true};
  own.idle = 0, own.probe = price;
}

void AdaptiveWindow::keep(std::span<const int32_t> seats, std::span<const int64_t> waiting, const Load& load,
                          std::vector<Ask>& asked) {
  constexpr int64_t kRows = PendingRows::kRows;
  const double price = writing_.seconds(1, kRows), share = kShare * seconds(load);
  double left = account_;
  int64_t idle = 0;  // requests whose rows are written for nothing, one a step
  for (size_t r = 0; r < seats.size(); r++) idle += waiting[r] > 0 && request(seats[r]).idle >= kRows;
  for (size_t r = 0; r < seats.size(); r++) {
    Request& own = request(seats[r]);
    if (asked[r].context || own.let_go || waiting[r] < kRows) continue;
    const bool dear = static_cast<double>(idle) * price > share * kRows;
    own.let_go = dear && left < price;
    asked[r].context = !own.let_go;
    if (own.let_go) idle--;
    if (asked[r].context) left -= price;
  }
}

void AdaptiveWindow::writing_took(int64_t rows, double seconds) {
  if (rows > 0) account_ -= writing_.took(1, rows, seconds);
}

void AdaptiveWindow::drafting_took(int32_t deepest, int64_t requests, double seconds) {
  if (requests > 0) account_ -= drafting_.took(deepest, requests, seconds);
}

void AdaptiveWindow::verifying_took(double seconds) {
  if (last_.rows == 0) return;
  Correction& c = correction_[bucket_of(last_.rows)];
  const bool drafted = last_.drafts > 0;
  const double table = cost_.seconds(last_.rows + last_.drafts);
  double took = 0;
  if (drafted) {
    took = table * c.drafted.saw(seconds / table);
    c.in_a_row++;
  } else if (plain_in_a_row_ > 0) {
    if (plain_in_a_row_ == kSettled || seconds < table * c.plain.seconds_or(1)) c.plain.saw(seconds / table);
    if (c.due()) c.most_drafted = std::min(2 * c.most_drafted, kMostDrafted);
    c.in_a_row = 0;
  }
  plain_in_a_row_ = drafted ? 0 : std::min(plain_in_a_row_ + 1, kSettled);
  const double without = verifying(last_.rows, 0);
  account_ += 2 * kShare * without - (drafted ? took - without : 0);
  account_ = std::min(account_, kCredit * without);
}

void AdaptiveWindow::verified(int32_t seat, int32_t drafts, int32_t known, int32_t accepted) {
  Request& own = request(seat);
  const double gained = token() * accepted;
  account_ += gained;
  purse_ += std::min(own.probe, gained);
  last_.drafts += drafts;
  learn(own.rate, known, accepted, kRequestShare);
  learn(average_, known, accepted, kAverageShare);
}

}  // namespace deltaring
