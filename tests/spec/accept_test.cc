#include "spec/accept.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/draw.h"
#include "base/error.h"
#include "base/rng.h"
#include "support/misfit.h"

namespace deltaring {
namespace {

constexpr int kVocab = 5;
constexpr int64_t kPosition = 1000;  // of the first token that is emitted
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using test::misfit;

using Law = std::array<float, kVocab>;
using Chain = std::array<Law, kVocab>;  // law of the next token given the last one
using Acceptor = std::function<Verdict(std::span<const int32_t> drafts, const float* q, const float* p, int64_t vocab,
                                       uint64_t seed, int64_t position)>;

// With a dense law, or point masses where q is null.
Verdict accept_dense(std::span<const int32_t> drafts, const float* q, const float* p, int64_t vocab, uint64_t seed,
                     int64_t position) {
  return accept_sampled(drafts, {.q = q, .width = vocab}, p, vocab, seed, position);
}

struct Case {
  const char* name;
  Chain p, q;
};

Law normalised(Law weights) {
  const float sum = std::accumulate(weights.begin(), weights.end(), 0.0f);
  for (float& w : weights) w /= sum;
  return weights;
}

// Rotating the weights by the last token makes the second token depend on the first.
Chain chain(const Law& weights) {
  Chain rows{};
  for (int last = 0; last < kVocab; last++) {
    for (int id = 0; id < kVocab; id++) rows[last][id] = weights[(id + 2 * last) % kVocab];
    rows[last] = normalised(rows[last]);
  }
  return rows;
}

const Chain kSharp = chain({0.9f, 0.05f, 0.02f, 0.02f, 0.01f});
const Chain kFlat = chain({0.25f, 0.2f, 0.2f, 0.2f, 0.15f});
const Chain kSlope = chain({0.1f, 0.15f, 0.2f, 0.25f, 0.3f});
const Chain kTopTwo = chain({0.6f, 0, 0.4f, 0, 0});
const Chain kOtherThree = chain({0, 0.5f, 0, 0.3f, 0.2f});

const std::vector<Case> kCases = {
    {"flat_from_slope", kFlat, kSlope}, {"sharp_from_flat", kSharp, kFlat}, {"flat_from_sharp", kFlat, kSharp},
    {"equal", kSlope, kSlope},          {"disjoint", kTopTwo, kOtherThree}, {"zeros_in_p", kTopTwo, kFlat},
    {"zeros_in_q", kFlat, kTopTwo},
};

enum class Drafts { from_law, point_mass };

// One request decoded to `length` tokens behind token 0, with m drafts a step.
std::vector<int32_t> decode(const Case& c, Drafts kind, int m, size_t length, uint64_t seed, const Acceptor& accept,
                            Coin draft_coin = Coin::draft) {
  std::vector<int32_t> tokens{0};
  while (tokens.size() <= length) {
    const int64_t position = kPosition + static_cast<int64_t>(tokens.size()) - 1;
    const uint64_t coin_seed = draft_coin == Coin::draft ? step_seed(seed, position - 1) : seed;
    std::vector<int32_t> drafts;
    std::vector<float> q, p(c.p[tokens.back()].begin(), c.p[tokens.back()].end());
    for (int i = 0; i < m; i++) {
      const Law& law = c.q[i == 0 ? tokens.back() : drafts.back()];
      const auto likeliest = static_cast<int32_t>(std::max_element(law.begin(), law.end()) - law.begin());
      const double u = uniform(coin_seed, position + i, draft_coin);
      drafts.push_back(kind == Drafts::from_law ? sample(law.data(), kVocab, u) : likeliest);
      q.insert(q.end(), law.begin(), law.end());
      p.insert(p.end(), c.p[drafts.back()].begin(), c.p[drafts.back()].end());
    }
    const Verdict v = accept(drafts, kind == Drafts::from_law ? q.data() : nullptr, p.data(), kVocab, seed, position);
    tokens.insert(tokens.end(), drafts.begin(), drafts.begin() + v.accepted);
    tokens.push_back(v.next);
  }
  tokens.erase(tokens.begin());
  tokens.resize(length);
  return tokens;
}

// The worst misfit of the first token, of the first two, and of the last two of `length` (= behind several steps).
double worst_misfit(const Case& c, Drafts kind, int m, size_t length, int trials, const Acceptor& accept,
                    Coin draft_coin = Coin::draft) {
  std::vector<int> first(kVocab), head(kVocab * kVocab), tail(kVocab * kVocab);
  for (int trial = 0; trial < trials; trial++) {
    const auto tokens = decode(c, kind, m, length, static_cast<uint64_t>(trial), accept, draft_coin);
    if (std::ranges::min(tokens) < 0) return std::numeric_limits<double>::infinity();
    first[tokens[0]]++;
    head[tokens[0] * kVocab + tokens[1]]++;
    tail[tokens[length - 2] * kVocab + tokens[length - 1]]++;
  }
  const auto pairs = [&](const std::vector<double>& marginal) {
    std::vector<double> law(kVocab * kVocab);
    for (int x = 0; x < kVocab; x++) {
      for (int y = 0; y < kVocab; y++) law[x * kVocab + y] = marginal[x] * c.p[x][y];
    }
    return law;
  };
  const std::vector<double> start(c.p[0].begin(), c.p[0].end());
  std::vector<double> late = start;
  for (size_t step = 0; step + 2 < length; step++) {
    const auto law = pairs(late);
    for (int y = 0; y < kVocab; y++) {
      late[y] = 0;
      for (int x = 0; x < kVocab; x++) late[y] += law[x * kVocab + y];
    }
  }
  return std::max(
      {misfit(start, first, trials), misfit(pairs(start), head, trials), misfit(pairs(late), tail, trials)});
}

class Lossless : public testing::TestWithParam<Case> {};

TEST_P(Lossless, TokensFollowTheTargetsLaw) {
  for (Drafts kind : {Drafts::from_law, Drafts::point_mass}) {
    for (int m : {0, 1, 3, 15}) {
      EXPECT_LT(worst_misfit(GetParam(), kind, m, 5, m == 15 ? 4'000 : 12'000, accept_dense), 1) << m;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Accept, Lossless, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// The rules once more, with the mistakes an implementation can make.
enum class Mistake { none, accept_coin_again, target_instead_of_residual };

Acceptor with(Mistake mistake) {
  return [=](std::span<const int32_t> drafts, const float* q, const float* p, int64_t vocab, uint64_t seed,
             int64_t position) -> Verdict {
    const auto m = static_cast<int32_t>(drafts.size());
    for (int32_t i = 0; i <= m; i++, p += vocab, position++) {
      std::vector<float> law(p, p + vocab);
      const double u = uniform(seed, position, Coin::accept);
      if (i < m && !q && mistake == Mistake::none) {  // the target's own draw decides
        if (sample(p, vocab, uniform(seed, position, Coin::residual)) == drafts[i]) continue;
      } else if (i < m) {
        const float q_d = q ? q[i * vocab + drafts[i]] : 1;
        if (u * q_d < p[drafts[i]]) continue;
        for (int64_t id = 0; id < vocab && mistake != Mistake::target_instead_of_residual; id++) {
          law[id] = std::max(0.0f, p[id] - (q ? q[i * vocab + id] : id == drafts[i]));
        }
      }
      const double coin = mistake == Mistake::accept_coin_again ? u : uniform(seed, position, Coin::residual);
      return {i, sample(law.data(), vocab, coin)};
    }
    return {};
  };
}

TEST(Mutants, FailTheChiSquare) {
  for (Drafts kind : {Drafts::from_law, Drafts::point_mass}) {
    const auto misfit_of = [&](Mistake mistake) { return worst_misfit(kCases[0], kind, 3, 5, 12'000, with(mistake)); };
    EXPECT_LT(misfit_of(Mistake::none), 1);
    EXPECT_GT(misfit_of(Mistake::accept_coin_again), 1);
    EXPECT_GT(misfit_of(Mistake::target_instead_of_residual), 1);
  }
  for (Coin coin : {Coin::accept, Coin::residual}) {
    EXPECT_GT(worst_misfit(kCases[0], Drafts::from_law, 3, 5, 12'000, accept_dense, coin), 1);
  }
}

TEST(AcceptSampled, EqualLawsAcceptEverythingDisjointLawsNothing) {
  for (int m : {1, 7, 15}) {
    for (uint64_t seed = 0; seed < 500; seed++) {
      const auto counted = [&](int32_t expected) {
        return [=](auto drafts, auto q, auto p, auto vocab, auto s, auto position) {
          const Verdict v = accept_dense(drafts, q, p, vocab, s, position);
          EXPECT_EQ(v.accepted, expected);
          return v;
        };
      };
      decode({"equal", kSharp, kSharp}, Drafts::from_law, m, 20, seed, counted(m));
      decode({"disjoint", kTopTwo, kOtherThree}, Drafts::from_law, m, 20, seed, counted(0));
    }
  }
}

TEST(AcceptSampled, NeverEmitsATokenOfProbabilityZero) {
  for (const Case& c : kCases) {
    for (Drafts kind : {Drafts::from_law, Drafts::point_mass}) {
      for (uint64_t seed = 0; seed < 500; seed++) {
        int32_t last = 0;
        for (int32_t token : decode(c, kind, 7, 20, seed, accept_dense)) {
          ASSERT_GT(c.p[last][token], 0);
          last = token;
        }
      }
    }
  }
}

// A token's coins depend on its position alone: two windows of one draft decide what one window of two does.
TEST(AcceptSampled, CoinsBelongToPositions) {
  for (uint64_t seed = 0; seed < 300; seed++) {
    const std::array<int32_t, 2> drafts{1, 2};
    std::vector<float> p(kFlat[0].begin(), kFlat[0].end());
    p.insert(p.end(), kSlope[0].begin(), kSlope[0].end());
    p.insert(p.end(), kFlat[0].begin(), kFlat[0].end());
    const Verdict both = accept_dense(drafts, nullptr, p.data(), kVocab, seed, 50);
    if (both.accepted == 0) continue;
    const Verdict second = accept_dense(std::span(drafts).subspan(1), nullptr, p.data() + kVocab, kVocab, seed, 51);
    EXPECT_EQ(second.accepted, both.accepted - 1);
    EXPECT_EQ(second.next, both.next);
  }
}

// The rules written down literally, with the same coins at the same positions, give the same tokens.
TEST(AcceptSampled, EachDecisionTakesTheCoinOfItsPosition) {
  for (const Case& c : kCases) {
    for (Drafts kind : {Drafts::from_law, Drafts::point_mass}) {
      for (uint64_t seed = 0; seed < 200; seed++) {
        for (int m : {0, 1, 4}) {
          ASSERT_EQ(decode(c, kind, m, 12, seed, accept_dense), decode(c, kind, m, 12, seed, with(Mistake::none)));
        }
      }
    }
  }
}

TEST(AcceptSampled, ATinyResidualFallsBackToTheTarget) {
  // Up to rounding q is p or more: what is left, 1e-9 on token 2, is no law.
  const Law p{0.5f, 0.5f, 1e-9f, 0, 0}, q{std::nextafter(0.5f, 1.0f), 0.5f, 0, 0, 0};
  const std::array<int32_t, 1> drafts{0};
  std::vector<float> rows(p.begin(), p.end());
  rows.insert(rows.end(), p.begin(), p.end());
  const Law big{4, 0.5f, 0, 0, 0};  // rejects often, still without residual
  int rejected = 0;
  for (uint64_t seed = 0; seed < 300; seed++) {
    for (const Law& law : {q, big}) {
      const Verdict v = accept_dense(drafts, law.data(), rows.data(), kVocab, seed, 0);
      rejected += v.accepted == 0;
      ASSERT_TRUE(v.next == 0 || v.next == 1);
    }
  }
  EXPECT_GT(rejected, 100);
}

TEST(AcceptSampled, ARowWithoutALawGivesMinusOne) {
  const std::array<int32_t, 2> drafts{0, 1};
  const std::vector<float> sure{1, 0, 0, 0, 0}, none(kVocab), nans(kVocab, kNan);
  const auto rows = [&](const std::vector<float>& first, const std::vector<float>& second) {
    std::vector<float> p = first;
    p.insert(p.end(), second.begin(), second.end());
    p.insert(p.end(), kFlat[0].begin(), kFlat[0].end());
    return p;
  };
  const std::vector<float> certain = rows(sure, {0, 1, 0, 0, 0});
  for (const auto& bad : {none, nans}) {
    for (const float* q : {static_cast<const float*>(nullptr), certain.data()}) {
      const Verdict first = accept_dense(drafts, q, rows(bad, sure).data(), kVocab, 3, 10);
      EXPECT_EQ(first.accepted, 0);
      EXPECT_EQ(first.next, -1);
      const Verdict second = accept_dense(drafts, q, rows(sure, bad).data(), kVocab, 3, 10);
      EXPECT_EQ(second.accepted, 1);
      EXPECT_EQ(second.next, -1);
    }
    EXPECT_EQ(accept_dense({}, nullptr, bad.data(), kVocab, 3, 10).next, -1);
  }
}

// Rejected whatever the coins say, and replaced by an exact draw from p.
TEST(AcceptSampled, DraftsThatCannotHaveBeenDrawnAreRejected) {
  std::vector<float> p(kFlat[0].begin(), kFlat[0].end());
  p.insert(p.end(), kFlat[0].begin(), kFlat[0].end());
  const std::vector<float> nans(kVocab, kNan), zero{0, 0.5f, 0.5f, 0, 0}, negative{-1, 1, 1, 0, 0};
  const std::vector<double> law(kFlat[0].begin(), kFlat[0].end());
  const auto expect_draw_from_p = [&](int32_t draft, const float* q) {
    constexpr int kTrials = 5'000;
    std::vector<int> counts(kVocab);
    for (uint64_t seed = 0; seed < kTrials; seed++) {
      const Verdict v = accept_dense({&draft, 1}, q, p.data(), kVocab, seed, 9);
      ASSERT_EQ(v.accepted, 0);
      counts.at(v.next)++;
    }
    EXPECT_LT(misfit(law, counts, kTrials), 1);
  };
  for (int32_t draft : {-1, kVocab, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    expect_draw_from_p(draft, nullptr);
    expect_draw_from_p(draft, kFlat[0].data());
  }
  expect_draw_from_p(0, nans.data());
  expect_draw_from_p(0, zero.data());
  expect_draw_from_p(0, negative.data());
}

TEST(AcceptSampled, NanElsewhereInQIsHarmless) {
  std::vector<float> p(kFlat[0].begin(), kFlat[0].end()), q{1, kNan, kNan, kNan, kNan};
  p.insert(p.end(), kFlat[0].begin(), kFlat[0].end());
  const std::array<int32_t, 1> drafts{0};
  for (uint64_t seed = 0; seed < 200; seed++) {
    const Verdict v = accept_dense(drafts, q.data(), p.data(), kVocab, seed, 9);
    ASSERT_TRUE(v.next >= 0 && v.next < kVocab);
    ASSERT_TRUE(v.accepted == 1 || v.next != 0);
  }
}

// The same law as 16 of many ids, in any order, gives the same verdict, token for token.
TEST(AcceptSampled, SparseLawsDecideAsDenseOnes) {
  constexpr int64_t kMany = 40, kColumns = 16;
  std::mt19937 rng(9);
  std::uniform_real_distribution<float> uniform01(0, 1);
  int rejected = 0;
  for (uint64_t seed = 0; seed < 2000; seed++) {
    const int m = 1 + static_cast<int>(seed % 7);
    std::vector<float> q(m * kColumns), dense(m * kMany), p((m + 1) * kMany);
    std::vector<int32_t> ids(m * kColumns), drafts;
    for (float& x : p) x = uniform01(rng);
    for (int i = 0; i < m; i++) {
      std::vector<int32_t> order(kMany);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), rng);
      for (int64_t c = 0; c < kColumns; c++) {
        ids[i * kColumns + c] = order[c];
        q[i * kColumns + c] = dense[i * kMany + order[c]] = uniform01(rng);
      }
      drafts.push_back(order[rng() % (kColumns + 1)]);  // now and then one that the law does not have
    }
    const DraftLaw sparse{.q = q.data(), .ids = ids.data(), .width = kColumns};
    const Verdict a = accept_sampled(drafts, sparse, p.data(), kMany, seed, 30);
    const Verdict b = accept_dense(drafts, dense.data(), p.data(), kMany, seed, 30);
    ASSERT_EQ(std::pair(a.accepted, a.next), std::pair(b.accepted, b.next)) << seed;
    rejected += a.accepted < m;
  }
  EXPECT_GT(rejected, 500);
}

TEST(AcceptSampled, IdsOutsideTheVocabularyAreIgnored) {
  std::vector<float> p(kFlat[0].begin(), kFlat[0].end());
  p.insert(p.end(), kFlat[0].begin(), kFlat[0].end());
  const std::array<float, 3> q{0.4f, 0.3f, 0.3f};
  const std::array<int32_t, 3> ids{-1, 1 << 30, 2};
  for (const int32_t draft : {-1, 1 << 30, 0}) {
    const Verdict v =
        accept_sampled({&draft, 1}, {.q = q.data(), .ids = ids.data(), .width = 3}, p.data(), kVocab, 4, 9);
    EXPECT_EQ(v.accepted, 0);
    EXPECT_TRUE(v.next >= 0 && v.next < kVocab);
  }
}

// A cap that knows nothing of row cap and behind: the draft there, if it was accepted, is the next anchor.
TEST(AcceptSampled, CappedVerdictsFollowTheLaw) {
  for (const Case& c : kCases) {
    for (Drafts kind : {Drafts::from_law, Drafts::point_mass}) {
      const Acceptor capped = [](auto drafts, auto q, auto p, auto vocab, auto seed, auto position) {
        const int32_t cap = drafts.empty() || drafts[0] != 2 ? 1 : 2;
        return cap_verdict(accept_dense(drafts, q, p, vocab, seed, position), drafts, cap);
      };
      EXPECT_LT(worst_misfit(c, kind, 4, 5, 12'000, capped), 1) << c.name;
    }
  }
}

TEST(AcceptSampled, CapsCutLongVerdictsOnly) {
  const std::array<int32_t, 3> drafts{7, 8, 9};
  const auto capped = [&](Verdict v, int32_t cap) {
    const Verdict c = cap_verdict(v, drafts, cap);
    return std::pair(c.accepted, c.next);
  };
  EXPECT_EQ(capped({.accepted = 3, .next = 1}, 3), std::pair(3, 1));
  EXPECT_EQ(capped({.accepted = 3, .next = 1}, 1), std::pair(1, 8));
  EXPECT_EQ(capped({.accepted = 1, .next = 1}, 1), std::pair(1, 1));
  EXPECT_EQ(capped({.accepted = 2, .next = -1}, 0), std::pair(0, 7)) << "a row without a law behind the cap is no loss";
}

TEST(AcceptSampled, RefusesMissingRows) {
  EXPECT_THROW(accept_dense({}, nullptr, nullptr, kVocab, 0, 0), Error);
  EXPECT_THROW(accept_dense({}, nullptr, kFlat[0].data(), 0, 0, 0), Error);
  EXPECT_THROW(accept_sampled({}, {.q = kFlat[0].data(), .width = 3}, kFlat[0].data(), kVocab, 0, 0), Error);
}

}  // namespace
}  // namespace deltaring
