// A block drafter's context lies in the pages of its seat: it goes where the seat goes, in the same step as the
// target's state, and what is drafted never depends on the way.
#include "draft/block_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "draft/dynamic_conv.h"
#include "draft/seat_testing.h"
#include "support/block_drafters.h"

namespace deltaring::test {
namespace {

class Block : public ::testing::TestWithParam<const char*> {
 protected:
  struct World : BlockRig {
    explicit World(int64_t seats = 4, int64_t chunk = 64)
        : BlockRig(GetParam(),
                   {.seats = seats, .T = 9, .context = 192, .prefill_chunk = chunk, .checkpoint = DType::bf16}) {}
    std::vector<int32_t> drafts(const Sequence& s) {
      return BlockRig::drafts(s, static_cast<int32_t>(drafter->config().drafts()));
    }
    void catch_up(int32_t seat) { drafter->catch_up({&seat, 1}); }
    int64_t waiting(int32_t seat) const { return drafter->waiting(seat); }
    void step(Sequence& s, int count = 1) {
      for (int i = 0; i < count; i++) s.max_drafts = static_cast<int32_t>(drafter->config().drafts()), rig.step(s);
    }
  };
  size_t whole() const {
    return static_cast<size_t>(golden_drafter(GetParam(), golden_target_config()).config.drafts());
  }
  const std::vector<int32_t> prompt_{5, 4, 3, 2, 1, 5, 4, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71};
};

TEST_P(Block, DraftsAreAFunctionOfTheTokens) {
  World a, b;
  expect_drafts_follow_tokens(a, b, prompt_, whole());
}

TEST_P(Block, ChunksOfThePromptDoNotShow) {
  World one(1, 128), two(1, 64);
  std::vector<int32_t> prompt(120);
  for (size_t i = 0; i < prompt.size(); i++) prompt[i] = static_cast<int32_t>(i * i % 89);
  const Sequence a = one.rig.start(prompt), b = two.rig.start(prompt);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(one.drafts(a), two.drafts(b));
}

TEST_P(Block, CopiesDraftOnAsTheOriginalWould) {
  World world;
  expect_copies_draft_on(world, prompt_, whole(), 150);
}

TEST_P(Block, AnImportDraftsOn) {
  World from, to(2);
  Rig plain(golden_target(), {.T = 9, .checkpoint = DType::bf16});
  expect_import_drafts_on(from, to, plain.pool, prompt_, 150);
}

TEST_P(Block, ForgeriesAreRefused) {
  World from, to(2);
  expect_forgeries_are_refused(from, to, prompt_);
}

TEST_P(Block, ExportsHoldNothingOfOthers) {
  World used, fresh;
  expect_exports_hold_nothing_of_others(used, fresh, prompt_);
}

TEST_P(Block, RowsThatWaitDoNotShow) {
  World world, other;
  expect_waiting_does_not_show(world, other, prompt_, 150);
}

// The context before a rewind's position stays good, and nothing of the old branch is drafted from.
TEST_P(Block, ARewindDraftsFromWhatIsLeft) {
  World world, fresh;
  Sequence s = world.rig.start(prompt_);
  world.step(s, 6);
  Cursor c = world.rig.pool.cursor(s.seat);
  while (c.pos == c.folded) world.step(s), c = world.rig.pool.cursor(s.seat);
  world.rig.pool.rewind(s.seat, c.folded);
  s.tokens.resize(static_cast<size_t>(c.folded) + 1);
  const std::vector<int32_t> seen(s.tokens.begin(), s.tokens.end() - 1);
  const Sequence t = fresh.rig.start(seen);
  s.tokens.back() = t.tokens.back();
  EXPECT_EQ(world.drafts(s).size(), whole());
  EXPECT_EQ(world.drafts(s), fresh.drafts(t));
}

TEST_P(Block, WithoutItsContextASeatDraftsNothing) {
  World world(1);
  Sequence s = world.rig.start(prompt_);
  world.rig.pool.free(s.seat);
  Sequence unborn{.seat = world.rig.pool.allocate(), .tokens = s.tokens};
  ASSERT_TRUE(world.rig.pool.reserve(unborn.seat, 100));
  EXPECT_TRUE(world.drafts(unborn).empty()) << "the state holds nothing yet";
  world.rig.pool.free(unborn.seat);
  // A step that another stepper made delivered no rows: behind the hole nothing is drafted, and nothing breaks.
  Sequence t = world.rig.start(prompt_);
  SpecStepper plain(world.rig.model, world.rig.pool, nullptr, 64, 96);
  Sequence* const row = &t;
  plain.step({&row, 1});
  EXPECT_TRUE(world.drafts(t).empty());
  world.step(t, 3);
  EXPECT_TRUE(world.drafts(t).empty());
}

TEST_P(Block, NeighboursDoNotShow) {
  World together(3), alone(1);
  std::vector<Sequence> s;
  for (const int32_t first : {1, 2, 3}) {
    std::vector<int32_t> prompt = prompt_;
    prompt[0] = first;
    s.push_back(together.rig.start(prompt));
  }
  std::vector<DraftRequest> requests;
  const int32_t counts[] = {2, static_cast<int32_t>(whole()), 1};
  for (size_t b = 0; b < 3; b++)
    requests.push_back({.seat = s[b].seat, .drafts = counts[b], .tokens = s[b].tokens, .sampling = {}, .seed = 0});
  requests[2].sampling.temperature = 1;
  std::vector<Proposal> proposals(3);
  together.drafter->propose(requests, proposals);
  for (size_t b = 0; b < 3; b++) {
    Sequence own = alone.rig.start({s[b].tokens.begin(), s[b].tokens.end() - 1});
    own.sampling = requests[b].sampling;
    const Proposal want = alone.proposal(own, counts[b]);
    EXPECT_EQ(proposals[b].tokens, want.tokens);
    EXPECT_EQ(proposals[b].q, want.q);
    EXPECT_EQ(proposals[b].q_ids, want.q_ids);
    EXPECT_EQ(proposals[b].confidence, want.confidence);
    alone.rig.pool.free(own.seat);
  }
}

// NaN in the context makes drafts that are ids, and touches no other seat.
TEST_P(Block, NaNInTheContextStillDraftsIds) {
  World world(2);
  const Sequence s = world.rig.start(prompt_), other = world.rig.start(prompt_);
  const std::vector<int32_t> want = world.drafts(other);
  const KvPages kv = world.rig.pool.draft_kv(0);
  *kv.k.f32(kv.table[s.seat * kv.table_stride + 1], 0, 0, 0) = NAN;
  for (const float temperature : {0.0f, 1.0f}) {
    Sequence sick = s;
    sick.sampling.temperature = temperature;
    for (const int32_t id : world.drafts(sick)) EXPECT_TRUE(id >= 0 && id < 96);
  }
  EXPECT_EQ(world.drafts(other), want);
}

INSTANTIATE_TEST_SUITE_P(All, Block, ::testing::ValuesIn(kGoldenDrafters), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// One tap of one, no dynamic part: nothing happens. Rows never see later rows or another block's.
TEST(DynamicConv, IdentityCausalityAndBlockBounds) {
  constexpr int64_t n = 5, H = 4, taps = 2, group = 2, G = H / group;
  std::vector<float> x(n * H), base(2 * taps * H), dynamic(n * 2 * taps * G), out(n * H), poisoned(n * H);
  for (size_t i = 0; i < x.size(); i++) x[i] = static_cast<float>(i) - 7.5f;
  const int32_t start[] = {0, 3, 5}, seat[] = {0, 1};
  const int64_t first[] = {4, 9};
  DynamicConvArgs args{.rows = {.count = 2, .start = start, .seat = seat, .first = first},
                       .x = dense<2>(x.data(), DType::f32, {n, H}),
                       .base = base.data(),
                       .dynamic = dense<2>(dynamic.data(), DType::f32, {n, 2 * taps * G}),
                       .taps = taps,
                       .group = group,
                       .side = ConvSide::behind,
                       .out = dense<2>(out.data(), DType::f32, {n, H})};
  std::fill_n(base.data() + taps * H, H, 1.0f);
  dynamic_conv(args);
  EXPECT_EQ(out, x);
  std::fill_n(base.data() + taps * H + H, H, 0.5f);
  for (size_t i = 0; i < dynamic.size(); i++) dynamic[i] = static_cast<float>(i % 7) * 0.25f;
  dynamic_conv(args);
  for (int64_t t = 0; t < n; t++) {
    for (int64_t c = 0; c < H; c++) {
      const float* d = &dynamic[(t * 2 + 1) * taps * G];
      float want = (1 + d[c / group]) * x[t * H + c];
      if (t != 0 && t != 3) want += (0.5f + d[G + c / group]) * x[(t - 1) * H + c];
      EXPECT_FLOAT_EQ(out[t * H + c], want) << t << " " << c;
    }
  }
  for (const int64_t row : {2, 4}) std::fill_n(x.data() + row * H, H, NAN);
  args.out = dense<2>(poisoned.data(), DType::f32, {n, H});
  dynamic_conv(args);
  for (const int64_t row : {0, 1, 3})
    EXPECT_TRUE(std::equal(out.data() + row * H, out.data() + (row + 1) * H, poisoned.data() + row * H)) << row;
  args.accumulate = true, args.x = dense<2>(base.data(), DType::f32, {n, 3});
  EXPECT_THROW(dynamic_conv(args), Error);
}

}  // namespace
}  // namespace deltaring::test
