// The cursors of a step where they lie, on every backend.
#include <gtest/gtest.h>

#include <random>

#include "backends/tables.h"
#include "ops/device.h"
#include "ops/refused.h"

namespace deltaring {
namespace {

using replay::Block, replay::Device;

// One array in the backend's memory.
template <class T>
class Array {
 public:
  Array(const Device& device, const std::vector<T>& values)
      : count_(values.size()), block_(device.allocate(count_ * sizeof(T))) {
    std::ranges::copy(values, reinterpret_cast<T*>(block_->host()));
    block_->push();
  }
  T* device() const { return reinterpret_cast<T*>(block_->device()); }
  std::vector<T> pull() const {
    block_->pull();
    const T* values = reinterpret_cast<const T*>(block_->host());
    return {values, values + count_};
  }

 private:
  size_t count_;
  std::unique_ptr<Block> block_;
};

class Commit : public ::testing::TestWithParam<const OpTable*> {
 protected:
  Device device_{*GetParam()};
  std::unique_ptr<Stream> stream_ = GetParam()->make_stream(1);
};
INSTANTIATE_TEST_SUITE_P(, Commit, ::testing::ValuesIn(backends()), [](const auto& info) { return info.param->name; });

// 50 steps of 300 rows against the functions of cursor.h, with rows that are cancelled and rows without a seat.
TEST_P(Commit, MovesEveryCursorAsTheHostWould) {
  constexpr int32_t kRows = 300, T = 8;
  for (const FoldPolicy policy : {FoldPolicy::grid, FoldPolicy::every}) {
    for (const int64_t F : {8, 16}) {
      std::mt19937 random(3);
      std::vector<int32_t> seat(kRows), kept(kRows);
      std::vector<int64_t> first(kRows), folded(kRows), fold_to(kRows);
      for (int32_t b = 0; b < kRows; b++) {
        seat[b] = b % 7 == 3 ? -1 : kRows - 1 - b;
        first[b] = b % 7 == 3 ? -77 : (int64_t{1} << (b % 40)) - 1;
        folded[b] = fold_to[b] = b % 7 == 3 ? -77 : plan_fold({0, first[b]}, F, policy);
      }
      const Array<int32_t> seats(device_, seat);
      std::vector<int32_t> order(kRows);
      const Array<int32_t> orders(device_, order);
      const Array<int64_t> firsts(device_, first), foldeds(device_, folded), fold_tos(device_, fold_to);
      for (int step = 0; step < 50; step++) {
        for (int32_t b = 0; b < kRows; b++) {
          kept[b] = seat[b] < 0 ? -99 : static_cast<int32_t>(random() % (T + 1));
          if (seat[b] < 0) continue;
          const Cursor moved = commit(Cursor{folded[b], first[b]}, fold_to[b], kept[b]);
          first[b] = moved.pos, folded[b] = moved.folded, fold_to[b] = plan_fold(moved, F, policy);
        }
        const Array<int32_t> keeps(device_, kept);
        GetParam()->commit({.count = kRows,
                            .seat = seats.device(),
                            .kept = keeps.device(),
                            .first = firsts.device(),
                            .folded = foldeds.device(),
                            .fold_to = fold_tos.device(),
                            .order = step % 2 ? orders.device() : nullptr,
                            .F = F,
                            .policy = policy},
                           *stream_);
        device_.wait(*stream_);
        ASSERT_EQ(firsts.pull(), first);
        ASSERT_EQ(foldeds.pull(), folded);
        ASSERT_EQ(fold_tos.pull(), fold_to);
        ASSERT_EQ(seats.pull(), seat);
        if (step % 2 == 0) continue;
        order.clear();
        // Folds; more than eight records; some; none, or no seat.
        const auto kind = [&](int32_t b) {
          if (seat[b] < 0 || (fold_to[b] == folded[b] && first[b] == folded[b])) return 3;
          return fold_to[b] > folded[b] ? 0 : first[b] - folded[b] > 8 ? 1 : 2;
        };
        for (int wanted = 0; wanted < 4; wanted++) {
          for (int32_t b = 0; b < kRows; b++) {
            if (kind(b) == wanted) order.push_back(b);
          }
        }
        ASSERT_EQ(orders.pull(), order);
      }
    }
  }
}

TEST_P(Commit, ArgumentsThatCannotBe) {
  const Array<int32_t> seat(device_, {0, -1}), kept(device_, {3, -99});
  const Array<int64_t> first(device_, {9, -77}), folded(device_, {0, -77}), fold_to(device_, {8, -77});
  const CommitArgs good{.count = 2,
                        .seat = seat.device(),
                        .kept = kept.device(),
                        .first = first.device(),
                        .folded = folded.device(),
                        .fold_to = fold_to.device()};
  const auto op = [this](const CommitArgs& args) { GetParam()->commit(args, *stream_); };
  testing::expect_refused<CommitArgs>(good,
                                      {{[](auto& a) { a.count = -1; }, "commit: count is -1"},
                                       {[](auto& a) { a.F = 4; }, "commit: F is 4, want 8 or 16"},
                                       {[](auto& a) { a.seat = nullptr; }, "commit: rows of 2 need seat"},
                                       {[](auto& a) { a.kept = nullptr; }, "commit: rows of 2 need seat, kept"},
                                       {[](auto& a) { a.fold_to = nullptr; }, "folded and fold_to"}},
                                      op);
  EXPECT_NO_THROW(op({}));
}

// Numbers that cannot be: refused where the host sees them, left alone elsewhere.
TEST_P(Commit, NumbersThatCannotBe) {
  struct Numbers {
    int32_t kept;
    int64_t first, folded, fold_to;
  };
  for (const Numbers n : {Numbers{-1, 9, 0, 8}, Numbers{3, 9, 8, 0}, Numbers{3, 9, -8, 8}, Numbers{3, 9, 0, 16}}) {
    const Array<int32_t> seat(device_, {0}), kept(device_, {n.kept});
    const Array<int64_t> first(device_, {n.first}), folded(device_, {n.folded}), fold_to(device_, {n.fold_to});
    const CommitArgs args{.count = 1,
                          .seat = seat.device(),
                          .kept = kept.device(),
                          .first = first.device(),
                          .folded = folded.device(),
                          .fold_to = fold_to.device()};
    if (GetParam()->memory) {
      EXPECT_NO_THROW(GetParam()->commit(args, *stream_));
    } else {
      EXPECT_THROW(GetParam()->commit(args, *stream_), Error);
    }
    EXPECT_EQ(first.pull()[0], n.first);
    EXPECT_EQ(folded.pull()[0], n.folded);
    EXPECT_EQ(fold_to.pull()[0], n.fold_to);
  }
}

}  // namespace
}  // namespace deltaring
