#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "spec/accept.h"

namespace deltaring {
namespace {

TEST(AcceptGreedy, TakesTheLongestPrefix) {
  const auto verdict = [](std::vector<int32_t> drafts, std::vector<int32_t> target) {
    const Verdict v = accept_greedy(drafts, target);
    return std::pair(v.accepted, v.next);
  };
  EXPECT_EQ(verdict({}, {7}), std::pair(0, 7));
  EXPECT_EQ(verdict({5}, {7, 8}), std::pair(0, 7));
  EXPECT_EQ(verdict({7}, {7, 8}), std::pair(1, 8));
  EXPECT_EQ(verdict({7, 9, 3}, {7, 8, 3, 4}), std::pair(1, 8));  // a later agreement does not count
  for (int m = 0; m <= 15; m++) {
    std::vector<int32_t> target(m + 1);
    std::iota(target.begin(), target.end(), 100);
    for (int a = 0; a <= m; a++) {
      std::vector<int32_t> drafts(target.begin(), target.end() - 1);
      if (a < m) drafts[a] = 0;
      EXPECT_EQ(verdict(drafts, target), std::pair(a, 100 + a));
    }
  }
}

TEST(AcceptGreedy, ARowWithoutAnArgmaxEndsThePrefix) {
  const Verdict v = accept_greedy(std::array{7, -1, 9}, std::array{7, -1, 9, 4});
  EXPECT_EQ(v.accepted, 1);
  EXPECT_EQ(v.next, -1);
}

TEST(AcceptGreedy, RefusesAWrongNumberOfRows) {
  EXPECT_THROW(accept_greedy(std::array{7}, std::array{7}), Error);
  EXPECT_THROW(accept_greedy({}, {}), Error);
}

}  // namespace
}  // namespace deltaring
