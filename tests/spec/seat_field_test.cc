// Seats that change hands: freed, reused, cached and resumed while others decode.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <set>

#include "spec/schedules.h"
#include "support/pool_pieces.h"
#include "support/refusal.h"

namespace deltaring::test {
namespace {

std::vector<int32_t> prompt_of(size_t length, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> prompt(length);
  for (int32_t& id : prompt) id = static_cast<int32_t>(rng() % 48);
  return prompt;
}

// Everything that no request owns, filled with NaN; nobody may read it or write to it.
class Fallow {
 public:
  explicit Fallow(const StatePool& pool) : pool_(pool) { fill(all_pieces(pool), 0xff); }

  // The seat was freed.
  void add(int32_t seat, const std::vector<int32_t>& pages) {
    seats_.insert(seat);
    fill(seat_pieces(pool_, seat), 0xff);
    for (const int32_t page : pages) pages_.insert(page), fill(page_pieces(pool_, page), 0xff);
  }
  void remove(int32_t seat, const std::vector<int32_t>& pages) {
    seats_.erase(seat);
    for (const int32_t page : pages) pages_.erase(page);
  }
  bool intact() const {
    bool intact = true;
    const auto look = [&intact](const Pieces& pieces) {
      for (const auto& [name, piece] : pieces) intact = intact && holds(piece, 0xff);
    };
    for (const int32_t seat : seats_) look(seat_pieces(pool_, seat));
    for (const int32_t page : pages_) look(page_pieces(pool_, page));
    return intact;
  }

 private:
  const StatePool& pool_;
  std::set<int32_t> seats_, pages_;
};

struct Request {
  Sequence sequence;
  Plain plain;
  size_t length;  // tokens wanted

  bool done() const { return sequence.tokens.size() >= plain.prompt + length; }
};

// 64 requests of 1 to 9 tokens through as many seats as run at once; every step somebody finishes, is aborted or goes
// back. Who survives is as if alone.
void churn(RigOptions o, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto draw = [&rng](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  const Weights weights = random_model(mini_config(), 31);
  o.seats = 4, o.T = 4, o.context = 64;
  Rig rig(weights, o);
  ScriptedDrafter drafter(seed, 48);
  rig.use(&drafter);
  Fallow fallow(rig.pool);
  std::vector<std::optional<Request>> running(4);
  int admitted = 0, survived = 0, rewound = 0;
  const auto leave = [&](std::optional<Request>& request) {
    const int32_t seat = request->sequence.seat;
    const std::vector<int32_t> pages = pages_of(rig.pool, seat, o.context);
    rig.pool.free(seat);
    fallow.add(seat, pages);
    request.reset();
  };
  while (admitted < 64 || survived == 0 || std::any_of(running.begin(), running.end(), [](auto& r) { return !!r; })) {
    for (auto& request : running) {
      if (request || admitted == 64) continue;
      const std::vector<int32_t> prompt = prompt_of(static_cast<size_t>(1 + draw(20)), rng());
      request = Request{{}, decode_plain(weights, o, prompt, 14), static_cast<size_t>(1 + draw(9))};
      request->sequence = rig.start(prompt);
      const int32_t seat = request->sequence.seat;
      ASSERT_GE(seat, 0);
      fallow.remove(seat, pages_of(rig.pool, seat, o.context));
      drafter.truth(seat, request->plain.tokens);
      ASSERT_EQ(difference(rig, request->sequence, 0, request->plain), "");
      admitted++;
    }
    std::vector<Sequence*> rows;
    std::vector<const Plain*> plains;
    for (auto& request : running) {
      if (!request) continue;
      request->sequence.max_drafts = 3;
      rows.push_back(&request->sequence), plains.push_back(&request->plain);
    }
    if (rows.empty()) break;
    ASSERT_EQ(step_and_compare(rig, rows, plains), "");
    ASSERT_TRUE(fallow.intact());
    for (auto& request : running) {
      if (!request) continue;
      Sequence& s = request->sequence;
      const Cursor c = rig.pool.cursor(s.seat);
      const int64_t oldest = std::max(c.folded, static_cast<int64_t>(request->plain.prompt));
      if (request->done())
        survived++, leave(request);
      else if (draw(10) == 0)
        leave(request);
      else if (draw(3) == 0 && oldest < c.pos) {
        const int64_t to = oldest + draw(c.pos - oldest + 1);
        rig.pool.rewind(s.seat, to);
        s.tokens.resize(static_cast<size_t>(to) + 1), rewound++;
      }
    }
    rig.pool.check_invariants();
  }
  EXPECT_EQ(admitted, 64);
  EXPECT_GT(survived, 20);
  if (o.rollback == StateRollback::replay && o.policy == FoldPolicy::grid) {
    EXPECT_GT(rewound, 10);
  }
  EXPECT_EQ(rig.pool.free_seats(), 4);
  EXPECT_TRUE(fallow.intact());
}

TEST(SeatField, Field_C2_Churn) {
  churn({}, 1);
  churn({.checkpoint = DType::bf16, .kv = DType::bf16}, 2);
}
TEST(SeatField, Field_C2_ChurnFoldingAlways) { churn({.policy = FoldPolicy::every}, 3); }
TEST(SeatField, Field_C2_ChurnUnderSnapshot) {
  churn({.rollback = StateRollback::snapshot, .checkpoint = DType::f16}, 4);
}

// A row whose request is gone is refused before anything is written, and the others go on.
TEST(SeatField, Field_C2_AStaleRowHarmsNobody) {
  const Weights weights = random_model(mini_config(), 31);
  Rig rig(weights, {.seats = 3});
  const Plain plain = decode_plain(weights, {}, {1, 2, 3}, 20);
  Sequence good = rig.start({1, 2, 3}), gone = rig.start({4, 5, 6, 7});
  rig.pool.free(gone.seat);
  const std::vector<std::byte> state = rig.pool.export_seat(good.seat);
  Sequence* const rows[] = {&good, &gone};
  EXPECT_EQ(refusal([&] { rig.stepper->step(rows); }), ErrorKind::invalid_argument);
  const Sequence heir = rig.start({9});  // in the same seat
  ASSERT_EQ(heir.seat, gone.seat);
  const std::vector<std::byte> inherited = rig.pool.export_seat(heir.seat);
  EXPECT_EQ(refusal([&] { rig.stepper->step(rows); }), ErrorKind::invalid_argument);
  EXPECT_EQ(rig.pool.export_seat(good.seat), state);
  EXPECT_EQ(rig.pool.export_seat(heir.seat), inherited);
  for (int i = 0; i < 5; i++) ASSERT_EQ(step_and_compare(rig, {&good}, {&plain}), "");
}

// NaN in every kind of state of one request; whoever comes into its seat and pages is finite.
TEST(SeatField, Field_C6_NaNIsNotInherited) {
  const Weights weights = random_model(mini_config(), 32);
  for (const StateRollback rollback : {StateRollback::replay, StateRollback::snapshot}) {
    const RigOptions o{.seats = 2, .context = 64, .rollback = rollback};
    Rig rig(weights, o);
    for (uint64_t i = 0; i < 16; i++) {
      Sequence bad = rig.start(prompt_of(12, i));
      fill(seat_pieces(rig.pool, bad.seat), 0xff);
      for (const int32_t page : pages_of(rig.pool, bad.seat, 64)) fill(page_pieces(rig.pool, page), 0xff);
      rig.step(bad);
      EXPECT_TRUE(bad.failed);
      rig.pool.free(bad.seat);
      const std::vector<int32_t> prompt = prompt_of(1 + i, 100 + i);
      const Plain plain = decode_plain(weights, o, prompt, 10);
      Sequence s = rig.start(prompt);
      EXPECT_EQ(s.seat, bad.seat);
      for (int step = 0; step < 8; step++) {
        ASSERT_EQ(step_and_compare(rig, {&s}, {&plain}), "") << "request " << i;
        ASSERT_TRUE(std::isfinite(rig.stepper->logits().f32(0)[0]));
      }
      rig.pool.free(s.seat);
    }
  }
}

// The length of the state, of the KV and of the snapshot are one number, whatever prefills and drafts made of it; and
// who resumes from it goes on as if nothing had happened.
TEST(SeatField, Field_D1_D3_D7_ASnapshotIsTheStateOfItsLength) {
  const Weights weights = random_model(mini_config(), 33);
  for (const bool drafted : {false, true}) {
    RigOptions o{.seats = 8, .context = 256, .checkpoint = DType::bf16};
    Rig rig(weights, o);
    ScriptedDrafter drafter(11, 48);
    if (drafted) rig.use(&drafter);
    for (const size_t length : {1, 7, 63, 64, 65, 100}) {
      const std::vector<int32_t> prompt = prompt_of(length, length);
      const Plain plain = decode_plain(weights, o, prompt, 40);
      Sequence s = rig.start(prompt);
      drafter.truth(s.seat, plain.tokens);
      std::vector<int32_t> cached;
      for (int i = 0; i < 5; i++) {
        const int64_t tokens = static_cast<int64_t>(s.tokens.size()) - 1;
        EXPECT_EQ(rig.pool.cursor(s.seat).pos, tokens);
        for (const int64_t wrong : {tokens + 1, tokens - 1, int64_t{64}}) {  // the anchor is in no state yet
          if (wrong == tokens) continue;
          EXPECT_EQ(refusal([&] { rig.pool.snapshot(s.seat, wrong); }), ErrorKind::invalid_argument);
        }
        cached.push_back(rig.pool.snapshot(s.seat, tokens));
        ASSERT_GE(cached.back(), 0);
        s.max_drafts = 3;
        ASSERT_EQ(step_and_compare(rig, {&s}, {&plain}), "");
      }
      rig.pool.free(s.seat);
      for (const int32_t seat : cached) {
        const int64_t tokens = rig.pool.cursor(seat).pos;
        Sequence resumed{.seat = rig.pool.own(seat), .tokens = plain.tokens};
        resumed.tokens.resize(static_cast<size_t>(tokens) + 1);
        rig.pool.reserve(resumed.seat, 256);
        drafter.truth(resumed.seat, plain.tokens);
        for (int i = 0; i < 4; i++) {
          resumed.max_drafts = 3;
          ASSERT_EQ(step_and_compare(rig, {&resumed}, {&plain}), "") << length << " resumed at " << tokens;
        }
        rig.pool.free(resumed.seat);
      }
      rig.pool.check_invariants();
    }
  }
}

// One prompt token is left when a prefix is found: the state behind it is that of a cold run, to the byte.
TEST(SeatField, Field_C16_ResumeWithOnePromptTokenLeft) {
  const Weights weights = random_model(mini_config(), 33);
  for (const size_t length : {9, 17, 40, 65, 66}) {
    Rig rig(weights, {.seats = 3, .checkpoint = DType::bf16});
    const std::vector<int32_t> prompt = prompt_of(length, length);
    const Sequence cold = rig.start(prompt);
    const std::vector<std::byte> want = rig.pool.export_seat(cold.seat);
    std::vector<int32_t> head(prompt.begin(), prompt.end() - 1);
    const Sequence before = rig.start(head);
    const int32_t cached = rig.pool.snapshot(before.seat, static_cast<int64_t>(length) - 1);
    rig.pool.free(before.seat);
    Sequence warm{.seat = rig.pool.own(cached), .tokens = prompt};
    ASSERT_TRUE(rig.pool.reserve(warm.seat, 128));
    rig.stepper->prefill(warm);
    EXPECT_EQ(warm.tokens, cold.tokens);
    EXPECT_EQ(rig.pool.export_seat(warm.seat), want) << length;
  }
}

// While a step runs its tokens are in no state: nobody can publish one of that length, and what is published is whole.
TEST(SeatField, Field_D14_NoSnapshotOfAStepThatRuns) {
  class Publisher final : public Drafter {
   public:
    explicit Publisher(Rig& rig) : rig_(rig) {}
    const char* name() const override { return "publisher"; }
    void propose(std::span<const DraftRequest> requests, std::span<Proposal>) override {
      const int64_t tokens = static_cast<int64_t>(requests[0].tokens.size());
      refused = refusal([&] { rig_.pool.snapshot(requests[0].seat, tokens); });
      cached = rig_.pool.snapshot(requests[0].seat, tokens - 1);
    }
    std::optional<ErrorKind> refused;
    int32_t cached = -1;

   private:
    Rig& rig_;
  };
  Rig rig(random_model(mini_config(), 33), {.seats = 3});
  Publisher publisher(rig);
  rig.use(&publisher);
  Sequence s = rig.start(prompt_of(15, 1));
  s.max_drafts = 1;
  const std::vector<std::byte> before = rig.pool.export_seat(s.seat);
  rig.step(s);
  EXPECT_EQ(publisher.refused, ErrorKind::invalid_argument);
  EXPECT_EQ(rig.pool.export_seat(publisher.cached), before);
}

// A cached seat is read-only for the stepper too: refused before a layer has written to it.
TEST(SeatField, CachedSeatsCannotBeDecoded) {
  const Weights weights = random_model(mini_config(), 33);
  for (const FoldPolicy policy : {FoldPolicy::grid, FoldPolicy::every}) {
    Rig rig(weights, {.seats = 3, .policy = policy});
    Sequence s = rig.start(prompt_of(13, 1));
    while (policy == FoldPolicy::grid && rig.pool.cursor(s.seat).pos < 17) rig.step(s);  // a fold is due
    const int64_t pos = rig.pool.cursor(s.seat).pos;
    Sequence cached = s;
    cached.seat = rig.pool.snapshot(s.seat, pos);
    const Picture before = picture_of(rig.pool);
    EXPECT_EQ(refusal([&] { rig.step(cached); }), ErrorKind::invalid_argument);
    EXPECT_EQ(picture_of(rig.pool), before) << "step";
    cached.failed = false;
    EXPECT_EQ(refusal([&] { rig.stepper->prefill(cached); }), ErrorKind::invalid_argument);
    EXPECT_EQ(picture_of(rig.pool), before) << "prefill";
  }
}

}  // namespace
}  // namespace deltaring::test
