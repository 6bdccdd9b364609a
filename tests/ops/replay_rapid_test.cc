// Schedules as RapidCheck generates them: a schedule that fails shrinks to a few commands that a person can follow.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "ops/mutant_hosts.h"
#include "ops/mutant_kinds.h"
#include "ops/mutant_snapshots.h"
#include "ops/replay_properties.h"

namespace deltaring::replay {

// For RapidCheck's report.
static void showValue(const Command& c, std::ostream& os) { os << "\n  " << to_string(c); }

}  // namespace deltaring::replay

namespace rc {

// Values are uniform whatever the size, which counts commands and turns only. Small values are the simple ones.
template <>
struct Arbitrary<deltaring::replay::Turn> {
  static auto arbitrary() {
    using deltaring::replay::kDrafts;
    using deltaring::replay::Turn;
    const std::vector drafts(std::begin(kDrafts), std::end(kDrafts));
    return gen::resize(kNominalSize, gen::build<Turn>(gen::set(&Turn::seat, gen::inRange<int32_t>(-1, 4)),
                                                      gen::set(&Turn::length, gen::inRange<int32_t>(0, 12)),
                                                      gen::set(&Turn::keep, gen::inRange<int32_t>(0, 12)),
                                                      gen::set(&Turn::draft, gen::elementOf(drafts))));
  }
};

template <>
struct Arbitrary<deltaring::replay::Command> {
  static auto arbitrary() {
    using namespace deltaring::replay;
    const auto what = gen::weightedElement<What>({{10, What::step},
                                                  {3, What::prefill},
                                                  {1, What::fold},
                                                  {2, What::rewind},
                                                  {1, What::fork},
                                                  {1, What::admit},
                                                  {1, What::free}});
    const auto amount = gen::resize(kNominalSize, gen::inRange<int32_t>(0, 12));
    const auto seat = gen::resize(kNominalSize, gen::inRange<int32_t>(0, 4));
    return gen::build<Command>(
        gen::set(&Command::what, what), gen::set(&Command::seat, seat), gen::set(&Command::amount, amount),
        gen::set(&Command::turns, gen::resize(6, gen::container<std::vector<Turn>>(gen::arbitrary<Turn>()))));
  }
};

}  // namespace rc

namespace deltaring::replay {
namespace {

constexpr int64_t kT = 8, kSeats = 4;
constexpr Shape kShape{.Hk = 1, .Hv = 2, .K = 8, .V = 8, .checkpoint = DType::bf16, .record = DType::bf16};
constexpr Shape kChannels{.Hk = 1, .Hv = 1, .K = 8, .V = 8, .G = 8, .checkpoint = DType::f16, .F = 16};
constexpr Shape kSnapshots{.Hk = 1, .Hv = 2, .K = 8, .V = 8, .checkpoint = DType::bf16, .rollback = Rollback::snapshot};

// What does not hold when the commands run on three requests and a free seat.
Failures failures_of(const World& world, const std::vector<Command>& commands) {
  Failures failures;
  try {
    Driver driver(world, kT, ring_rows(world, kT), kSeats, failures);
    for (int64_t seat = 0; seat < 3; seat++) driver.admit(seat, seat);
    for (const Command& c : commands)
      if (driver.ok()) apply(c, driver);
  } catch (const std::exception& e) {
    failures.push_back(e.what());
  }
  return failures;
}

// Seeded, so that every build tries the same schedules; the longest has about `size` commands.
rc::detail::TestResult check_schedules(const std::function<void(const std::vector<Command>&)>& property, int schedules,
                                       int size) {
  const rc::detail::TestParams params{.seed = 7, .maxSuccess = schedules, .maxSize = size};
  return rc::detail::checkTestable(property, rc::detail::TestMetadata{}, params);
}

class RapidReplay : public testing::TestWithParam<const OpTable*> {};

TEST_P(RapidReplay, AnyScheduleEqualsPlainDecoding) {
  for (const Shape& shape : {kShape, kChannels, kSnapshots}) {
    const World world(subject_of(*GetParam()), shape, 3, 120);
    ASSERT_EQ(world.failures, Failures());
    const auto result = check_schedules(
        [&](const std::vector<Command>& commands) {
          for (const std::string& f : failures_of(world, commands)) RC_FAIL(f);
        },
        250, 60);
    std::ostringstream report;
    rc::detail::printResultMessage(result, report);
    EXPECT_TRUE(result.is<rc::detail::SuccessResult>()) << report.str();
  }
}

INSTANTIATE_TEST_SUITE_P(, RapidReplay, testing::ValuesIn(backends()),
                         [](const auto& info) { return info.param->name; });

// The mutant, and the commands that remain of the schedule that caught it.
struct Shrunk {
  const char* name;
  void (*inject)(Subject&);
  Shape shape;
  size_t commands;
};

template <void (*fault)(const GdnVerifyArgs&, Stream&, bool)>
void verify(Subject& s) {
  s.table.gdn_verify = [](const GdnVerifyArgs& a, Stream& stream) { fault(a, stream, false); };
}

std::vector<Shrunk> shrunk() {
  return {
      {"commit_at_least_one", [](Subject& s) { s.commit = mutant::commit_at_least_one; }, kShape, 1},
      {"width_5_forgets_its_last_record", verify<mutant::width_5_forgets_its_last_record>, kShape, 1},
      {"no_decay_in_replay", verify<mutant::no_decay_in_replay>, kShape, 2},
      {"checkpoint_not_rounded_in_passing", verify<mutant::checkpoint_not_rounded_in_passing>, kShape, 2},
      {"commit_forgets_the_fold", [](Subject& s) { s.commit = mutant::commit_forgets_the_fold; }, kShape, 3},
      {"checkpoint_one_token_late", verify<mutant::checkpoint_one_token_late>, kShape, 3},
      {"ragged_offsets_taken_as_dense", verify<mutant::ragged_offsets_taken_as_dense>, kShape, 1},
      {"channel_gates_read_as_one", verify<mutant::channel_gates_read_as_one>, kChannels, 1},
      {"snapshot_one_too_early", [](Subject& s) { s.table.snapshot_commit = mutant::snapshot_one_too_early; },
       kSnapshots, 1},
      {"snapshot_state_not_rounded", [](Subject& s) { s.table.snapshot_verify = mutant::snapshot_state_not_rounded; },
       kSnapshots, 1},
  };
}

class RapidMutant : public testing::TestWithParam<Shrunk> {};

// The requests are decoded by the backend without the fault, so that it is for a schedule to find.
TEST_P(RapidMutant, ShrinksToAFewCommands) {
  Subject subject = subject_of(mutant::base());
  const World sound(subject, GetParam().shape, 3, 120);
  GetParam().inject(subject);
  const World world(sound, subject);
  std::vector<Command> smallest;
  const auto result = check_schedules(
      [&](const std::vector<Command>& commands) {
        if (failures_of(world, commands).empty()) return;
        smallest = commands;
        RC_FAIL("caught");
      },
      200, 60);
  EXPECT_TRUE(result.is<rc::detail::FailureResult>());
  std::string left;
  for (const Command& c : smallest) left += "\n  " + to_string(c);
  EXPECT_LE(smallest.size(), GetParam().commands) << left;
  std::cout << GetParam().name << left << "\n";
}

INSTANTIATE_TEST_SUITE_P(, RapidMutant, testing::ValuesIn(shrunk()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace deltaring::replay
