#include "draft/ngram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"

namespace deltaring {
namespace {

using Tokens = std::vector<int32_t>;

Tokens propose(NgramDrafter& drafter, const Tokens& tokens, int32_t drafts, int32_t seat = 0) {
  const DraftRequest request{.seat = seat, .drafts = drafts, .tokens = tokens, .sampling = {}, .seed = 0};
  Proposal proposal{.tokens = {99, 99}, .q = {1}};
  drafter.propose({&request, 1}, {&proposal, 1});
  EXPECT_TRUE(proposal.q.empty());
  return proposal.tokens;
}

Tokens copy(const Tokens& tokens, size_t end, int32_t drafts) {
  Tokens text = tokens;
  for (int32_t i = 0; i < drafts; i++) text.push_back(text[end + i]);
  return {text.begin() + static_cast<int64_t>(tokens.size()), text.end()};
}

bool occurs(const Tokens& tokens, size_t end, size_t n) {
  return std::equal(tokens.end() - n, tokens.end(), tokens.begin() + end - n);
}

// By trying every place.
Tokens oracle(const Tokens& tokens, int32_t drafts, const NgramOptions& options) {
  for (size_t n = options.max_match; n >= static_cast<size_t>(options.min_match); n--) {
    std::vector<size_t> ends;
    for (size_t end = n; end < tokens.size(); end++) {
      if (occurs(tokens, end, n)) ends.push_back(end);
    }
    if (ends.empty()) continue;
    return copy(tokens, options.occurrence == Occurrence::earliest ? ends.front() : ends.back(), drafts);
  }
  return {};
}

TEST(Ngram, ContinuesTheMostRecentOrTheEarliestOccurrence) {
  const Tokens tokens{1, 2, 3, 1, 2, 4, 1, 2};
  NgramDrafter recent, earliest({.occurrence = Occurrence::earliest});
  EXPECT_EQ(propose(recent, tokens, 2), (Tokens{4, 1}));
  EXPECT_EQ(propose(earliest, tokens, 2), (Tokens{3, 1}));
}

TEST(Ngram, TheLongestMatchCountsFirst) {
  NgramDrafter drafter;
  EXPECT_EQ(propose(drafter, {7, 1, 2, 3, 8, 2, 3, 9, 7, 1, 2, 3}, 1), (Tokens{8}));
  NgramDrafter shorter({.min_match = 1, .max_match = 2});
  EXPECT_EQ(propose(shorter, {7, 1, 2, 3, 8, 2, 3, 9, 7, 1, 2, 3}, 1), (Tokens{9}));
}

TEST(Ngram, APeriodicTextGoesOnBehindItsEnd) {
  NgramDrafter drafter;
  EXPECT_EQ(propose(drafter, {1, 2, 3, 1, 2, 3, 1, 2}, 7), (Tokens{3, 1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(propose(drafter, {5, 5, 5}, 4, 1), (Tokens{5, 5, 5, 5}));  // occurrences may overlap
}

TEST(Ngram, ASuffixDoesNotFindItself) {
  NgramDrafter drafter;
  for (int call = 0; call < 3; call++) EXPECT_EQ(propose(drafter, {1, 2, 3, 4, 5}, 3), Tokens{});
}

TEST(Ngram, ShortHistoriesAndNoDrafts) {
  NgramDrafter drafter, single({.min_match = 1, .max_match = 1});
  for (const Tokens& tokens : {Tokens{}, Tokens{1}, Tokens{1, 1}}) EXPECT_EQ(propose(drafter, tokens, 3), Tokens{});
  EXPECT_EQ(propose(drafter, {1, 1, 1}, 3), (Tokens{1, 1, 1}));
  EXPECT_EQ(propose(drafter, {1, 1, 1}, 0), Tokens{});
  EXPECT_EQ(propose(drafter, {1, 1, 1}, -1), Tokens{});
  EXPECT_EQ(propose(drafter, {1, 1, 1}, 3, -1), Tokens{});
  EXPECT_EQ(propose(single, {}, 3), Tokens{});
  EXPECT_EQ(propose(single, {4}, 3), Tokens{});
  EXPECT_EQ(propose(single, {4, 4}, 3), (Tokens{4, 4, 4}));
}

TEST(Ngram, AnyTokenIdIsAToken) {
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min(), kMax = std::numeric_limits<int32_t>::max();
  NgramDrafter drafter;
  EXPECT_EQ(propose(drafter, {kMin, kMax, -1, 0, kMin, kMax}, 3), (Tokens{-1, 0, kMin}));
}

// Random texts over small alphabets, growing by steps as acceptance does, on several seats in one call, with resets and
// with histories that were replaced without one.
TEST(Ngram, EqualsTheOracle) {
  std::mt19937 random(5);
  const auto below = [&](int32_t n) { return static_cast<int32_t>(random() % n); };
  for (const NgramOptions& options :
       {NgramOptions{}, NgramOptions{.occurrence = Occurrence::earliest}, NgramOptions{.min_match = 1, .max_match = 1},
        NgramOptions{.min_match = 5, .max_match = 5}, NgramOptions{.min_match = 1, .max_match = 9}}) {
    NgramDrafter drafter(options);
    constexpr int kSeats = 3;
    std::vector<Tokens> histories(kSeats);
    int found = 0;
    for (int step = 0; step < 400; step++) {
      std::vector<DraftRequest> requests;
      for (int32_t seat = 0; seat < kSeats; seat++) {
        Tokens& tokens = histories[seat];
        if (below(60) == 0) {
          drafter.reset(seat);
          tokens.clear();
        } else if (below(60) == 0 && !tokens.empty()) {
          tokens.resize(below(static_cast<int32_t>(tokens.size())));
        } else if (below(60) == 0) {
          for (int32_t& token : tokens) token += 10;
        }
        if (below(4) == 0) continue;  // the seat sits this step out
        for (int n = 1 + below(8); n > 0; n--) tokens.push_back(below(2 + seat * 2));
        requests.push_back({.seat = seat, .drafts = below(9), .tokens = tokens, .sampling = {}, .seed = 0});
      }
      std::vector<Proposal> proposals(requests.size());
      drafter.propose(requests, proposals);
      for (size_t i = 0; i < requests.size(); i++) {
        const Tokens expected = oracle(histories[requests[i].seat], requests[i].drafts, options);
        ASSERT_EQ(proposals[i].tokens, expected) << "step " << step;
        found += !expected.empty();
      }
    }
    EXPECT_GT(found, 100);
  }
}

// The end of the old history stays where it was, so the replacement goes unnoticed: drafts may then be missed, but a
// suffix of min_match tokens precedes every one of them in the new history.
TEST(Ngram, AnUnnoticedReplacementStaysSound) {
  std::mt19937 random(6);
  NgramDrafter drafter;
  Tokens tokens(300);
  int found = 0;
  for (int round = 0; round < 300; round++) {
    for (size_t i = 0; i + 20 < tokens.size(); i++) tokens[i] = static_cast<int32_t>(random() % 3);
    for (int n = 0; n < 2; n++) tokens.push_back(static_cast<int32_t>(random() % 3));
    const Tokens drafts = propose(drafter, tokens, 5);
    bool sound = drafts.empty();
    for (size_t end = 2; end < tokens.size() && !sound; end++) {
      sound = occurs(tokens, end, 2) && copy(tokens, end, 5) == drafts;
    }
    ASSERT_TRUE(sound) << "round " << round;
    found += !drafts.empty();
  }
  EXPECT_GT(found, 100);
}

// Steps on a long history cost as little as on a short one: a rescan would take minutes here.
TEST(Ngram, LongHistoriesAreIndexedOnceAndInBoundedMemory) {
  std::mt19937 random(7);
  NgramDrafter drafter;
  Tokens tokens(100'000);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 200'000);
  const Tokens phrase(tokens.begin() + 500, tokens.begin() + 520);
  for (int step = 0; step < 20'000; step++) {
    tokens.push_back(phrase[step % 20]);
    const Tokens drafts = propose(drafter, tokens, 3);
    if (step < 24) continue;  // the first period continues with what followed the phrase at 500
    ASSERT_EQ(drafts, (Tokens{phrase[(step + 1) % 20], phrase[(step + 2) % 20], phrase[(step + 3) % 20]}));
  }
  EXPECT_GE(drafter.bytes(), tokens.size() * 3 * 8);
  EXPECT_LE(drafter.bytes(), tokens.size() * 3 * 16);
  drafter.reset(0);
  EXPECT_EQ(drafter.bytes(), 0u);
}

// Tokens chosen to share one slot of the index: it forgets some, and never takes one for another.
TEST(Ngram, CraftedCollisionsCostDraftsOnly) {
  Tokens tokens;
  for (int32_t token = 0; tokens.size() < 60; token++) {
    const uint64_t h = (1 ^ static_cast<uint64_t>(token)) * 0x9e3779b97f4a7c15u;
    if (((h ^ h >> 32) & 127) == 5) tokens.push_back(token);
  }
  const NgramOptions options{.min_match = 1, .max_match = 1};
  int forgotten = 0;
  for (const int32_t token : tokens) {
    NgramDrafter drafter(options);
    Tokens history(tokens.begin(), tokens.end());
    history.push_back(token);
    const Tokens drafts = propose(drafter, history, 2), expected = oracle(history, 2, options);
    ASSERT_TRUE(drafts.empty() || drafts == expected);
    forgotten += drafts.empty();
  }
  EXPECT_GT(forgotten, 20);
  EXPECT_LT(forgotten, 40);
}

TEST(Ngram, RefusesImpossibleOptionsAndSpans) {
  for (const auto& [min, max] : {std::pair(0, 4), std::pair(5, 4), std::pair(2, 33), std::pair(-1, -1)}) {
    EXPECT_THROW(NgramDrafter({.min_match = min, .max_match = max}), Error);
  }
  NgramDrafter drafter;
  const std::vector<DraftRequest> requests(2);
  std::vector<Proposal> proposals(1);
  EXPECT_THROW(drafter.propose(requests, proposals), Error);
}

}  // namespace
}  // namespace deltaring
