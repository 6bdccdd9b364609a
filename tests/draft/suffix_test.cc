#include "draft/suffix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "base/error.h"

namespace deltaring {
namespace {

using Tokens = std::vector<int32_t>;

Proposal propose(SuffixDrafter& drafter, const Tokens& tokens, int32_t drafts, int32_t seat = 0) {
  const DraftRequest request{.seat = seat, .drafts = drafts, .tokens = tokens, .sampling = {}, .seed = 0};
  Proposal proposal;
  drafter.propose({&request, 1}, {&proposal, 1});
  return proposal;
}

Proposal propose(const Tokens& tokens, int32_t drafts, const SuffixOptions& options = {}) {
  SuffixDrafter drafter(options);
  return propose(drafter, tokens, drafts);
}

// The rule by counting strings in the whole history.
struct Rule {
  const SuffixOptions options;
  const Tokens& tokens;

  // How often `text` stands in the history.
  int count(const Tokens& text) const {
    int n = 0;
    for (auto at = tokens.begin(); (at = std::search(at, tokens.end(), text.begin(), text.end())) != tokens.end(); at++)
      n++;
    return n;
  }
  // Where it stands last, among the places where a token follows.
  std::ptrdiff_t last(const Tokens& text) const {
    return std::find_end(tokens.begin(), tokens.end(), text.begin(), text.end()) - tokens.begin();
  }

  Proposal drafts(int32_t most) const {
    Proposal best;
    double best_score = 0;
    for (int32_t n = 1; n <= options.max_match && n < static_cast<int32_t>(tokens.size()); n++) {
      Tokens text(tokens.end() - n, tokens.end());
      if (count(text) < 2) break;
      const auto budget = std::min<int32_t>(
          most,
          static_cast<int32_t>(std::floor(static_cast<float>(n) * options.max_spec_factor + options.max_spec_offset)));
      Proposal candidate;
      double score = 0;
      float running = 1;
      while (static_cast<int32_t>(candidate.tokens.size()) < budget) {
        int32_t next = -1;
        int most_often = 0;
        for (const int32_t id : Tokens{0, 1, 2, 3, 4, 5}) {
          Tokens longer = text;
          longer.push_back(id);
          const int often = count(longer);
          if (often == 0 || often < most_often) continue;
          Tokens rival = text;
          rival.push_back(next);
          if (often > most_often || last(longer) > last(rival)) next = id, most_often = often;
        }
        const float share = static_cast<float>(most_often) / static_cast<float>(count(text));
        running *= share;
        if (most_often == 0 || running < options.min_token_prob) break;
        text.push_back(next);
        candidate.tokens.push_back(next);
        candidate.confidence.push_back(share);
        score += running;
      }
      if (score > 0 && score >= best_score - 1e-12) best_score = score, best = candidate;
    }
    return best;
  }
};

TEST(Suffix, FollowsTheCounts) {
  std::mt19937 rng(1);
  int with_drafts = 0;
  for (int trial = 0; trial < 400; trial++) {
    SuffixOptions options{.max_match = 1 + static_cast<int32_t>(rng() % 8),
                          .max_spec_factor = static_cast<float>(rng() % 5) / 2,
                          .max_spec_offset = static_cast<float>(rng() % 3) - 0.5f,
                          .min_token_prob = 0.05f + static_cast<float>(rng() % 10) / 20};
    SuffixDrafter drafter(options);
    Tokens tokens;
    const int alphabet = 2 + static_cast<int>(rng() % 4);
    const auto length = 2 + rng() % 60;
    while (tokens.size() < length) {  // phrases that come back, with noise
      if (tokens.size() > 4 && rng() % 3) {
        const size_t from = rng() % (tokens.size() - 3);
        for (size_t i = 0; i < 3; i++) tokens.push_back(tokens[from + i]);
      } else {
        tokens.push_back(static_cast<int32_t>(rng() % alphabet));
      }
      if (rng() % 3) continue;
      const int32_t most = static_cast<int32_t>(rng() % 9);
      const Proposal got = propose(drafter, tokens, most), want = Rule{options, tokens}.drafts(most);
      ASSERT_EQ(got.tokens, want.tokens) << "trial " << trial;
      ASSERT_EQ(got.confidence, want.confidence) << "trial " << trial;
      EXPECT_TRUE(got.q.empty());
      with_drafts += !got.tokens.empty();
    }
  }
  EXPECT_GT(with_drafts, 500);
}

TEST(Suffix, DraftsWhatMostlyFollowed) {
  // 1 2 was followed by 3 twice and by 4 once, last of all.
  const Proposal p = propose({1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2}, 1);
  EXPECT_EQ(p.tokens, (Tokens{3}));
  EXPECT_EQ(p.confidence, (std::vector{0.5f})) << "two of four: the end itself is one of them";
}

TEST(Suffix, LongerMatchesMayDraftMore) {
  Tokens tokens{9, 1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 1, 2};
  EXPECT_EQ(propose(tokens, 8).tokens, (Tokens{3, 4, 5}));
  EXPECT_EQ(propose(tokens, 2).tokens, (Tokens{3, 4}));
  EXPECT_EQ(propose(tokens, 8, {.max_spec_factor = 2}).tokens, (Tokens{3, 4, 5, 6, 7, 8}));
  EXPECT_TRUE(propose(tokens, 8, {.max_spec_factor = 0}).tokens.empty());
  EXPECT_TRUE(propose(tokens, 8, {.min_token_prob = 0.6f}).tokens.empty()) << "one of two occurrences";
  EXPECT_TRUE(propose(tokens, 0).tokens.empty());
  EXPECT_TRUE(propose({1, 2, 3}, 8).tokens.empty());
  EXPECT_TRUE(propose({}, 8).tokens.empty());
}

// A frequent last token fills the newest occurrences; what ends with four tokens is found behind them all the same.
TEST(Suffix, LongMatchesAreFoundBehindManyShortOnes) {
  Tokens tokens{1, 2, 3, 7, 40, 41, 42, 43, 44};
  for (int i = 0; i < 100; i++) tokens.push_back(100 + i), tokens.push_back(7);
  tokens.insert(tokens.end(), {1, 2, 3, 7});
  EXPECT_EQ(propose(tokens, 4, {.max_occurrences = 8}).tokens, (Tokens{40, 41, 42, 43}));
}

TEST(Suffix, SeatsAreApartAndHistoriesAreRecognised) {
  SuffixDrafter drafter;
  const Tokens a{1, 2, 3, 4, 1, 2}, b{1, 2, 5, 6, 1, 2};
  EXPECT_EQ(propose(drafter, a, 2, 0).tokens, (Tokens{3, 4}));
  EXPECT_EQ(propose(drafter, b, 2, 1).tokens, (Tokens{5, 6}));
  EXPECT_EQ(propose(drafter, b, 2, 0).tokens, (Tokens{5, 6})) << "another history in the same seat";
  EXPECT_EQ(propose(drafter, a, 2, 0).tokens, (Tokens{3, 4}));
  EXPECT_TRUE(propose(drafter, a, 2, -1).tokens.empty());
  drafter.reset(0);
  EXPECT_EQ(propose(drafter, a, 2, 0).tokens, (Tokens{3, 4}));
}

TEST(Suffix, MemoryIsBoundedByTheHistory) {
  for (const int64_t length : {100, 5000, 70000}) {
    SuffixDrafter drafter;
    std::mt19937 rng(2);
    Tokens tokens;
    for (int64_t i = 0; i < length; i++) {
      tokens.push_back(static_cast<int32_t>(rng() % 50));
      if (i % 997 == 0) propose(drafter, tokens, 4);
    }
    propose(drafter, tokens, 4);
    EXPECT_LE(drafter.bytes(), static_cast<size_t>(32 * length + 8192)) << length;
    drafter.reset(0);
    EXPECT_EQ(drafter.bytes(), 0u);
  }
}

TEST(Suffix, RefusesWhatItCannotDo) {
  for (const SuffixOptions& bad :
       {SuffixOptions{.max_match = 0}, SuffixOptions{.max_match = 257}, SuffixOptions{.max_spec_factor = -1},
        SuffixOptions{.max_spec_factor = std::nanf("")}, SuffixOptions{.max_spec_offset = 1e9f},
        SuffixOptions{.min_token_prob = 0}, SuffixOptions{.min_token_prob = 1.5f},
        SuffixOptions{.max_occurrences = 0}}) {
    EXPECT_THROW(SuffixDrafter{bad}, Error);
  }
  SuffixDrafter drafter;
  Proposal proposal;
  EXPECT_THROW(drafter.propose({}, {&proposal, 1}), Error);
}

}  // namespace
}  // namespace deltaring
