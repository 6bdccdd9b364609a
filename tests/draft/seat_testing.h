// A drafter's context goes where its seat goes, whatever holds it. World: a rig, drafts(sequence) that asks for the
// next step's drafts, step(sequence, count).
#pragma once
#include <gtest/gtest.h>

#include <cstring>

#include "support/rig.h"
#include "support/seat_file.h"

namespace deltaring::test {

// A world on prompt that drafts `whole` tokens: copies of its seat draft as it does and go on apart.
template <class World>
void expect_copies_draft_on(World& world, const std::vector<int32_t>& prompt, size_t whole, int64_t room) {
  Sequence s = world.rig.start(prompt);
  world.step(s, 6);
  const std::vector<int32_t> want = world.drafts(s);
  ASSERT_EQ(want.size(), whole);
  const int64_t pos = static_cast<int64_t>(s.tokens.size()) - 1;
  Sequence copy = s, owned = s;
  copy.seat = world.rig.pool.copy(s.seat);
  const int32_t cached = world.rig.pool.snapshot(s.seat, pos);
  world.rig.pool.share(cached);
  owned.seat = world.rig.pool.own(cached);
  for (const Sequence* other : {&copy, &owned}) {
    ASSERT_TRUE(world.rig.pool.reserve(other->seat, room));
    EXPECT_EQ(world.drafts(*other), want);
  }
  // Other tokens in one of them are seen by no other.
  copy.tokens.back() = static_cast<int32_t>((copy.tokens.back() + 1) % world.rig.model.config().vocab_size);
  world.step(copy, 5);
  EXPECT_EQ(world.drafts(s), want);
  EXPECT_EQ(world.drafts(owned), want);
  world.step(s, 5), world.step(owned, 5);
  EXPECT_EQ(owned.tokens, s.tokens);
  EXPECT_EQ(world.drafts(owned), world.drafts(s));
}

// An exported seat drafts on in a world whose first seat is taken, and `plain`, without room for the context, refuses
// it.
template <class World>
void expect_import_drafts_on(World& from, World& to, StatePool& plain, const std::vector<int32_t>& prompt,
                             int64_t room) {
  Sequence s = from.rig.start(prompt);
  from.step(s, 6);
  const std::vector<std::byte> file = from.rig.pool.export_seat(s.seat);
  ASSERT_EQ(to.rig.pool.allocate(), 0);
  Sequence there = s;
  there.seat = to.rig.pool.import_seat(file);
  ASSERT_TRUE(there.seat >= 0 && to.rig.pool.reserve(there.seat, room));
  for (int i = 0; i < 6; i++) {
    EXPECT_EQ(to.drafts(there), from.drafts(s)) << i;
    to.step(there), from.step(s);
    EXPECT_EQ(there.tokens, s.tokens);
  }
  EXPECT_THROW(plain.import_seat(file), Error);
}

// A file whose checksum is right and whose context is none of its seat is refused, and takes no seat. The header of
// rows that wait: the position behind them, that behind the context, and how many rows are kept.
template <class World>
void expect_forgeries_are_refused(World& from, World& to, const std::vector<int32_t>& prompt) {
  Sequence s = from.rig.start(prompt);
  from.step(s, 6);
  const SeatFile file = from.rig.pool.export_seat(s.seat);
  const int64_t end = from.rig.pool.cursor(s.seat).pos, words[2] = {end, end - from.waiting(s.seat)};
  size_t at = file.size() - sizeof words;
  while (at > 0 && std::memcmp(&file[at], words, sizeof words) != 0) at--;
  ASSERT_GT(at, 0u);
  int64_t count = 0;
  std::memcpy(&count, &file[at + sizeof words], sizeof count);
  constexpr int64_t kFar = int64_t{1} << 40;
  const std::vector<int64_t> impossible[3] = {{kFar, -2, end + 1}, {-1, end + 1, end - count - 1}, {kFar, -1, 17}};
  for (size_t word = 0; word < std::size(impossible); word++) {
    for (const int64_t value : impossible[word])
      EXPECT_THROW(to.rig.pool.import_seat(with_word(file, at + 8 * word, value)), Error) << word << ": " << value;
  }
  to.rig.pool.check_invariants();
  EXPECT_EQ(to.rig.pool.import_seat(file), 0);
}

// Nothing of a request is in another's export, context that was never written included.
template <class World>
void expect_exports_hold_nothing_of_others(World& used, World& fresh, const std::vector<int32_t>& prompt) {
  for (int i = 0; i < 3; i++) {
    Sequence other = used.rig.start({3, 3, 2, 1, 4, 4});
    used.step(other, 8);
    used.rig.pool.free(other.seat);
  }
  Sequence a = used.rig.start(prompt), b = fresh.rig.start(prompt);
  EXPECT_EQ(used.rig.pool.export_seat(a.seat), fresh.rig.pool.export_seat(b.seat));
}

// The same tokens by another way, one prompt and drafts that were never made, draft the same.
template <class World>
void expect_drafts_follow_tokens(World& a, World& b, const std::vector<int32_t>& prompt, size_t whole) {
  Sequence s = a.rig.start(prompt);
  a.step(s, 10);
  EXPECT_EQ(a.drafts(s).size(), whole);
  EXPECT_EQ(a.drafts(s), a.drafts(s)) << "asking leaves nothing behind";
  const std::vector<int32_t> most(s.tokens.begin(), s.tokens.end() - 1);
  const Sequence t = b.rig.start(most);
  EXPECT_EQ(t.tokens, s.tokens);
  EXPECT_EQ(b.drafts(t), a.drafts(s));
}

// A seat that is asked for no drafts keeps its newest rows waiting: copies and imports of it draft like a new request
// on the same tokens, whatever waited and whoever wrote it first, and so does the seat itself at last.
template <class World>
void expect_waiting_does_not_show(World& world, World& other, const std::vector<int32_t>& prompt, int64_t room) {
  Sequence s = world.rig.start(prompt);
  for (int i = 0; i < 40; i++) {
    s.max_drafts = 0;
    world.rig.step(s);
    if (i % 11 == 7) {
      EXPECT_GT(world.waiting(s.seat), 0);
      world.catch_up(s.seat);
      EXPECT_LE(world.waiting(s.seat), 1);
    }
    Sequence copy = s, there = s, fresh = other.rig.start({s.tokens.begin(), s.tokens.end() - 1});
    ASSERT_EQ(fresh.tokens, s.tokens);
    const std::vector<int32_t> want = other.drafts(fresh);
    ASSERT_FALSE(want.empty());
    if (i % 3 == 0) {
      there.seat = other.rig.pool.import_seat(world.rig.pool.export_seat(s.seat));
      ASSERT_TRUE(there.seat >= 0 && other.rig.pool.reserve(there.seat, room));
      EXPECT_EQ(other.drafts(there), want) << i;
      other.rig.pool.free(there.seat);
    }
    if (i % 5 == 0) {
      copy.seat = world.rig.pool.copy(s.seat);
      ASSERT_TRUE(copy.seat >= 0 && world.rig.pool.reserve(copy.seat, room));
      EXPECT_EQ(world.drafts(copy), want) << i;
      world.step(copy, 2);
      EXPECT_FALSE(world.drafts(copy).empty());
      world.rig.pool.free(copy.seat);
    }
    if (i % 17 == 16 || i == 39) {
      EXPECT_EQ(world.drafts(s), want) << i;
    }
    other.rig.pool.free(fresh.seat);
  }
}

}  // namespace deltaring::test
