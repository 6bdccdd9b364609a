// Adaptive windows against simulated machines: what a step, drafting and writing context take is made up, and so is
// which drafts stay, so that time is counted and not measured.
#include "spec/adaptive.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>

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
  return {"compute-bound",
          StepCost({{1, 2.5}, {2, 3.3}, {4, 5}, {8, 8.5}, {16, 16}, {1024, 1024}}),
          0.1,
          0.5,
          0.1,
          0,
          0.05};
}
// As bound, with a drafter that nobody should use.
Machine slow_drafter() { return {"slow drafter", compute_bound().step, 0, 6, 2, 0, 0.4}; }
// A block drafter on such a machine, in plain steps of one request: drafts of a block and its context cost a lot.
Machine block_drafter() {
  return {"block drafter", StepCost({{1, 1}, {2, 1.3}, {4, 1.9}, {8, 3}, {16, 5.6}, {1024, 350}}), 0.1, 0.4, 0.04, 0.04,
          0.0105};
}
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
  double disturbance = 1;  // the first step without drafts seems to take so many times what it does
  double cold = 1;         // steps with drafts take so many times as long, and the two behind them: caches are full

  // By `window`, or drafts throughout where it is null.
  Outcome run(int steps, AdaptiveWindow* window, int32_t fixed = 0) {
    std::uniform_real_distribution<double> uniform01(0, 1);
    Outcome out;
    const auto n = static_cast<size_t>(requests);
    std::vector<int32_t> seats(n), wanted(n, kMost);
    std::vector<int64_t> left(n, 0), waiting(n), id(n);
    std::iota(seats.begin(), seats.end(), 0);
    int64_t next = 0;
    int since = 3;  // steps without drafts
    for (int step = 0; step < steps; step++) {
      for (size_t r = 0; r < n; r++) {
        if (left[r] > 0) continue;
        left[r] = 1 + static_cast<int64_t>(rng() % 600), waiting[r] = 1 + static_cast<int64_t>(rng() % 16),
        id[r] = next++;
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
      since = drafts > 0 ? 0 : since + 1;
      const double verifying = machine.step.seconds(requests + drafts) * (since < 3 ? cold : 1);
      out.seconds += verifying + drafted + writing;
      if (window) window->writing_took(rows, writing), window->drafting_took(deepest, drafting, drafted);
      for (size_t r = 0; r < n; r++) {
        int32_t accepted = 0;
        while (accepted < asked[r].drafts && uniform01(rng) < chance(id[r], step)) accepted++;
        if (window) window->verified(seats[r], asked[r].drafts, asked[r].drafts, accepted);
        emitted += 1 + accepted, left[r] -= 1 + accepted, waiting[r] += 1 + accepted;
        if (window && window->let_go(seats[r])) waiting[r] = 0;
        if (waiting[r] > PendingRows::kRows) overflow += PendingRows::kRows, waiting[r] -= PendingRows::kRows;
      }
      const double disturbed = drafts > 0 ? 1 : std::exchange(disturbance, 1);
      if (window) window->verifying_took(disturbed * verifying);
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
      }
    }
  }
}

// What a bench of a few seconds sees of a request: drafts that stay for a while and then do not, as where text repeats
// itself. Requests are not let go for one bad while.
TEST(Adaptive, KeepsWhatPaysByTurns) {
  const Machine machine = block_drafter();
  double against_plain = 0;
  constexpr int kWorlds = 20;
  for (uint64_t seed = 0; seed < kWorlds; seed++) {
    AdaptiveWindow window(machine.step, kMost);
    World world{machine, 1, [&](int64_t, int step) { return (step + 10 * seed) / 100 % 2 ? 0.7 : 0.95; }};
    world.rng.seed(seed);
    against_plain += world.run(1600, &window).against_plain() / kWorlds;
  }
  EXPECT_LT(against_plain, 0.8);
}

// Not even while few steps have been taken, of which the first try what drafts bring.
TEST(Adaptive, SpendsLittleOnTrying) {
  for (const Machine& machine : {compute_bound(), block_drafter()}) {
    for (const int64_t requests : {8, 16, 32}) {
      double against_plain = 0;
      constexpr int kWorlds = 20;
      for (uint64_t seed = 0; seed < kWorlds; seed++) {
        AdaptiveWindow window(machine.step, kMost);
        World world{machine, requests, [](int64_t, int) { return 0.4; }};
        world.rng.seed(seed);
        against_plain += world.run(120, &window).against_plain() / kWorlds;
      }
      EXPECT_LT(against_plain, 1.02) << machine.name << ", " << requests << " requests";
    }
  }
}

// Where drafts are always asked for, what a step takes without them is not to rest on one measurement.
TEST(Adaptive, GetsOverADisturbedMeasurement) {
  const Machine machine = block_drafter();
  for (const int64_t requests : {1, 2, 4, 8, 16}) {
    for (uint64_t seed = 0; seed < 20; seed++) {
      AdaptiveWindow window(machine.step, kMost);
      World world{machine, requests, [](int64_t, int) { return 0.4; }};
      world.rng.seed(seed), world.disturbance = 1.6;
      EXPECT_LT(world.run(400, &window).against_plain(), 1.05) << requests << " requests, world " << seed;
    }
  }
}

// Beside steps with drafts a plain step takes longer than where there are none, which says nothing for drafts.
TEST(Adaptive, DoesNotCompareWithColdCaches) {
  const Machine machine = memory_bound();
  for (const double chance : {0.2, 0.3, 0.35}) {
    AdaptiveWindow window(machine.step, kMost);
    World world{machine, 1, [&](int64_t, int) { return chance; }};
    world.cold = 1.5;
    EXPECT_LT(world.run(4000, &window).against_plain(), 1.03) << chance;
  }
}

// The table was made while the machine did something else: drafts look free, or as if nobody could pay for them.
TEST(Adaptive, FindsOutThatTheTableIsWrong) {
  const Machine bound = compute_bound(), memory = memory_bound();
  for (const int64_t requests : {1, 4, 32}) {
    AdaptiveWindow free(memory.step, kMost), dear(bound.step, kMost);
    const auto out = World{bound, requests, [](int64_t, int) { return 0.5; }}.run(2000, &free);
    EXPECT_LT(out.against_plain(), 1.03) << requests;
    const auto good = World{memory, requests, [](int64_t, int) { return 0.9; }}.run(2000, &dear);
    EXPECT_LT(good.against_plain(), requests < 32 ? 0.5 : 1.03) << requests;
  }
}

TEST(Adaptive, IsCloseToTheBestFixedWindow) {
  for (const Machine& machine : machines()) {
    for (const double chance : {0.3, 0.6, 0.75, 0.9}) {
      for (const int64_t requests : {1, 2, 4, 8, 16, 32, 128}) {
        World world{machine, requests, [&](int64_t, int) { return chance; }};
        const int steps = requests < 32 ? 1000 : 200;
        double best = 0;
        for (int32_t fixed = 0; fixed <= kMost; fixed++) best = std::max(best, world.run(steps, nullptr, fixed).rate());
        AdaptiveWindow window(machine.step, kMost);
        EXPECT_GT(world.run(2000, &window).rate(), 0.95 * best)
            << machine.name << ", " << requests << " requests, chance " << chance;
      }
    }
  }
}

TEST(Adaptive, NoticesWhenDraftsBecomeGood) {
  const Machine machine = memory_bound();
  for (const int64_t requests : {1, 4, 16}) {
    AdaptiveWindow window(machine.step, kMost);
    World world{machine, requests, [](int64_t, int) { return 0.0; }};
    EXPECT_LT(world.run(500, &window).drafts, 0.5 * 500 * static_cast<double>(requests));
    world.chance = [](int64_t, int) { return 0.95; };
    world.run(500, &window);
    EXPECT_GT(world.run(100, &window).drafts, 5 * 100 * static_cast<double>(requests));
  }
}

// What drafting takes is not known: first one draft of one request, then no more than about twice what was seen.
TEST(Adaptive, BeginsWithLittle) {
  const StepCost flat({{1, 1}, {1024, 1.1}});
  AdaptiveWindow window(flat, kMost);
  std::vector<int32_t> seats(32), wanted(32, kMost);
  std::iota(seats.begin(), seats.end(), 0);
  const std::vector<int64_t> waiting(32, 1);
  int32_t before = 0, deepest_before = 0;
  for (int step = 0; step < 12; step++) {
    const std::vector<AdaptiveWindow::Ask> asked = window.plan(seats, wanted, waiting);
    int32_t drafting = 0, deepest = 0;
    for (const auto& ask : asked) drafting += ask.drafts > 0, deepest = std::max(deepest, ask.drafts);
    EXPECT_LE(drafting, step ? 4 * before - 1 : 1) << "to the next power of two";
    EXPECT_LE(deepest, step ? 2 * deepest_before : 1);
    before = std::max(before, drafting), deepest_before = std::max(deepest_before, deepest);
    window.drafting_took(deepest, drafting, 1e-3);
    for (size_t r = 0; r < seats.size(); r++)
      window.verified(seats[r], asked[r].drafts, asked[r].drafts, asked[r].drafts);
    window.verifying_took(flat.seconds(32));
  }
  EXPECT_EQ(before, 32);
  EXPECT_EQ(deepest_before, kMost);
}

// Requests whose drafts never stay: their context is written on where that takes less than 0.75 % of the time, and
// else only while the account pays for it.
TEST(Adaptive, LetsGoOfRequestsWhoseContextIsDear) {
  const StepCost bound = compute_bound().step;
  for (const double row : {1e-4, 0.3}) {
    AdaptiveWindow window(bound, kMost);
    const std::array<int32_t, 2> seats{0, 1}, wanted{kMost, 0};
    std::array<int64_t, 2> waiting{1, 1};
    for (int step = 0; step < 200; step++) {
      const std::vector<AdaptiveWindow::Ask> asked = window.plan(seats, wanted, waiting);
      int64_t rows = 0;
      for (size_t r = 0; r < seats.size(); r++) {
        EXPECT_TRUE(asked[r].context || asked[r].drafts == 0);
        EXPECT_FALSE(window.let_go(seats[r]) && asked[r].context) << "nothing is done for those";
        if (asked[r].context) rows += waiting[r], waiting[r] = 0;
        window.verified(seats[r], asked[r].drafts, asked[r].drafts, 0);
        waiting[r] = window.let_go(seats[r]) ? 0 : waiting[r] + 1;
        EXPECT_LE(waiting[r], PendingRows::kRows);
      }
      window.writing_took(rows, row * static_cast<double>(rows));
      window.drafting_took(asked[0].drafts, asked[0].drafts > 0, 0.5);
      window.verifying_took(bound.seconds(2 + asked[0].drafts));
    }
    for (const int32_t seat : seats) EXPECT_EQ(window.let_go(seat), row > 0.01);
    window.forget(0);
    EXPECT_FALSE(window.let_go(0)) << "a new request";
  }
}

// Drafts behind a confidence cap are verified all the same: what they take is not what a plain step takes.
TEST(Adaptive, CountsDraftsOfWhichNothingWasDecided) {
  const StepCost step({{1, 1}, {2, 1.2}, {4, 1.5}, {8, 2}});
  AdaptiveWindow window(step, kMost);
  const std::array<int32_t, 1> seats{0}, wanted{kMost};
  const std::array<int64_t, 1> waiting{};
  double seconds = 0;
  constexpr int kSteps = 2000;
  for (int i = 0; i < kSteps; i++) {
    const int32_t drafts = window.plan(seats, wanted, waiting)[0].drafts;
    window.drafting_took(drafts, drafts > 0, 0.01);
    window.verified(0, drafts, 0, 0);
    window.verifying_took(step.seconds(1 + drafts));
    seconds += step.seconds(1 + drafts) + (drafts > 0 ? 0.01 : 0);
  }
  EXPECT_LT(seconds, 1.03 * kSteps);
}

TEST(Adaptive, AsksForNoMoreThanIsWanted) {
  AdaptiveWindow window(StepCost({{.tokens = 1, .seconds = 1}}), kMost);
  const std::array<int32_t, 4> seats{0, 1, 2, 3}, wanted{0, 3, -2, 99};
  const std::array<int64_t, 4> waiting{};
  int32_t most = 0;
  for (int i = 0; i < 200; i++) {
    const std::vector<AdaptiveWindow::Ask> asked = window.plan(seats, wanted, waiting);
    EXPECT_EQ(asked[0].drafts, 0);
    EXPECT_LE(asked[1].drafts, 3);
    EXPECT_EQ(asked[2].drafts, 0);
    EXPECT_LE(asked[3].drafts, kMost);
    most = std::max(most, asked[3].drafts);
    window.drafting_took(std::max(asked[1].drafts, asked[3].drafts), (asked[1].drafts > 0) + (asked[3].drafts > 0),
                         1e-3);
    for (size_t r = 0; r < seats.size(); r++)
      window.verified(seats[r], asked[r].drafts, asked[r].drafts, asked[r].drafts);
    window.verifying_took(1);
  }
  EXPECT_EQ(most, kMost);
}

TEST(DraftCost, BelievesWhatWasMeasuredNearest) {
  DraftCost cost(kMost);
  EXPECT_EQ(cost.seconds(3, 4), 0);
  EXPECT_EQ(cost.limit(1), 1);
  EXPECT_EQ(cost.limit(2), 0) << "one request first";
  EXPECT_EQ(cost.took(2, 1, 1.0), 1);
  EXPECT_EQ(cost.limit(1), 4);
  EXPECT_EQ(cost.limit(3), 4);
  EXPECT_EQ(cost.limit(4), 0);
  EXPECT_EQ(cost.seconds(7, 32), 1);
  EXPECT_EQ(cost.seconds(7, 0), 0) << "of nobody";
  EXPECT_EQ(cost.took(4, 8, 3.0), 3);
  EXPECT_EQ(cost.seconds(4, 9), 3);
  EXPECT_EQ(cost.seconds(2, 4), 3) << "of more requests rather than of fewer";
  EXPECT_EQ(cost.seconds(2, 1), 1);
  cost.took(3, 1, 0.8);
  EXPECT_EQ(cost.seconds(2, 1), 0.8) << "more drafts took less";
  EXPECT_EQ(cost.took(3, 1, 100), 1.6) << "an accident";
  EXPECT_DOUBLE_EQ(cost.seconds(3, 1), 1.2) << "of two measurements";
  cost.took(3, 1, 0.1);
  EXPECT_EQ(cost.seconds(3, 1), 0.1) << "what was known was the accident";
  EXPECT_EQ(cost.seconds(0, 5), 0);
}

}  // namespace
}  // namespace deltaring::test
