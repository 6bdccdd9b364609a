// Adaptive windows against simulated machines: what a step, drafting and writing context take is made up, and so is
// which drafts stay, so that time is counted and not measured.
#include "spec/adaptive.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>

#include "draft/pending_rows.h"

namespace deltaring::test {
namespace {

constexpr int32_t kMost = 7;

// Seconds of what a step does, one token of one request taking about one.
struct Machine {
  std::string name;
  StepCost step;
  double pass, request, draft;  // drafting: the pass, each request in it, each draft of the deepest
  double write, row;            // writing context: the pass, each row

  double drafting(int32_t deepest, int64_t requests) const {
    return requests ? pass + request * static_cast<double>(requests) + draft * deepest : 0;
  }
  double writing(int64_t rows) const { return rows ? write + row * static_cast<double>(rows) : 0; }
};

// Reads its weights once a step however many tokens go through: speculation is all but free.
Machine memory_bound() {
  return {"memory-bound", StepCost({{1, 1}, {256, 1.5}, {1024, 4}}), 0.15, 0.0003, 0, 0.03, 0.0001};
}
// Every token is paid for, context rows too, as on a small machine with a small model.
Machine compute_bound() {
  return {"compute-bound", StepCost({{1, 2.5}, {2, 3.3}, {4, 5}, {8, 8.5}, {16, 16}, {1024, 1024}}), 0.1, 0.5, 0.1, 0, 0.05};
}
// As bound, with a drafter that nobody should use.
Machine slow_drafter() { return {"slow drafter", compute_bound().step, 0, 6, 2, 0, 0.4}; }
std::vector<Machine> machines() { return {memory_bound(), compute_bound(), slow_drafter()}; }

struct Outcome {
  double seconds = 0, tokens = 0, plain = 0, drafts = 0;  // plain: seconds of the same tokens without drafts
  double against_plain() const { return seconds / plain; }
  double rate() const { return tokens / seconds; }
};

// So many requests of about 300 tokens, each followed by another; draft j of a request stays with chance(request, step)
// given those before it.
struct World {
  const Machine& machine;
  int64_t requests;
  std::function<double(int64_t request, int step)> chance;
  std::mt19937_64 rng{7};

  // By `window`, or drafts throughout where it is null.
  Outcome run(int steps, AdaptiveWindow* window, int32_t fixed = 0) {
    std::uniform_real_distribution<double> uniform01(0, 1);
    Outcome out;
    const auto n = static_cast<size_t>(requests);
    std::vector<int32_t> seats(n), wanted(n, kMost);
    std::vector<int64_t> left(n, 0), waiting(n), id(n);
    std::iota(seats.begin(), seats.end(), 0);
    int64_t next = 0;
    for (int step = 0; step < steps; step++) {
      for (size_t r = 0; r < n; r++) {
        if (left[r] > 0) continue;
        left[r] = 1 + static_cast<int64_t>(rng() % 600), waiting[r] = 1 + static_cast<int64_t>(rng() % 16), id[r] = next++;
        if (window) window->forget(seats[r]);
      }
      std::vector<AdaptiveWindow::Ask> asked(n, {.drafts = fixed, .context = fixed > 0});
      if (window) asked = window->plan(seats, wanted, waiting);
      int32_t deepest = 0;
      int64_t drafting = 0;
      int64_t rows = 0, overflow = 0, drafts = 0, emitted = 0;
      for (size_t r = 0; r < n; r++) {
        if (asked[r].context) rows += waiting[r], waiting[r] = 0;
        deepest = std::max(deepest, asked[r].drafts), drafting += asked[r].drafts > 0, drafts += asked[r].drafts;
      }
      const double writing = machine.writing(rows), drafted = machine.drafting(deepest, drafting);
      out.seconds += machine.step.seconds(requests + drafts) + drafted + writing;
      if (window) window->writing_took(rows, writing), window->drafting_took(deepest, drafting, drafted);
      for (size_t r = 0; r < n; r++) {
        int32_t accepted = 0;
        while (accepted < asked[r].drafts && uniform01(rng) < chance(id[r], step)) accepted++;
        if (window) window->verified(seats[r], asked[r].drafts, accepted);
        emitted += 1 + accepted, left[r] -= 1 + accepted, waiting[r] += 1 + accepted;
        if (window && window->let_go(seats[r])) waiting[r] = 0;
        if (waiting[r] > PendingRows::kRows) overflow += PendingRows::kRows, waiting[r] -= PendingRows::kRows;
      }
      if (window || fixed > 0) out.seconds += machine.writing(overflow);
      out.tokens += static_cast<double>(emitted), out.drafts += static_cast<double>(drafts);
      out.plain += machine.step.seconds(requests) / static_cast<double>(requests) * static_cast<double>(emitted);
    }
    return out;
  }
};

TEST(Adaptive, NeverTakesLongerThanPlainDecoding) {
  const std::vector<std::pair<std::string, std::function<double(int64_t, int)>>> chances{
      {"never", [](int64_t, int) { return 0.0; }},
      {"seldom", [](int64_t, int) { return 0.15; }},
      {"sometimes", [](int64_t, int) { return 0.45; }},
      {"often", [](int64_t, int) { return 0.8; }},
      {"some requests", [](int64_t request, int) { return request % 3 ? 0.1 : 0.9; }},
      {"now and then", [](int64_t, int step) { return step / 150 % 2 ? 0.0 : 0.9; }}};
  for (const Machine& machine : machines()) {
    for (const auto& [name, chance] : chances) {
      for (const int64_t requests : {1, 2, 4, 8, 16, 32, 128}) {
        AdaptiveWindow window(machine.step, kMost);
        const Outcome out = World{machine, requests, chance}.run(2000, &window);
        EXPECT_LT(out.against_plain(), 1.03) << machine.name << ", " << requests << " requests, drafts stay " << name;
        if(getenv("SHOW")) printf("%-14s %4ld %-14s %.4f drafts/row %.4f\n", machine.name.c_str(), (long)requests, name.c_str(), out.against_plain(), out.drafts/2000/requests);
      }
    }
  }
}

TEST(Adaptive, IsCloseToTheBestFixedWindow) {
  for (const Machine& machine : machines()) {
    for (const double chance : {0.3, 0.6, 0.75, 0.9}) {
      for (const int64_t requests : {1, 2, 4, 8, 16, 32, 128}) {
        World world{machine, requests, [&](int64_t, int) { return chance; }};
        double best = 0; int bf=0;
        for (int32_t fixed = 0; fixed <= kMost; fixed++) {double r=world.run(1000, nullptr, fixed).rate(); if(r>best) best=r,bf=fixed;}
        AdaptiveWindow window(machine.step, kMost);
        const Outcome out = world.run(2000, &window);
        const double rate=out.rate();
        EXPECT_GT(rate, 0.95 * best) << machine.name << ", " << requests << " requests, chance " << chance;
        if(getenv("SHOW")) printf("%-14s %4ld %.2f of best %.4f fixed %d drafts/row %.4f\n", machine.name.c_str(), (long)requests, chance, rate/best, bf,out.drafts/2000/requests);
      }
    }
  }
}

}  // namespace
}  // namespace deltaring::test
