// Which rows of a large matrix can have the largest products with a vector, without reading it: a copy in codes of
// eight bits, the upper four apart from the lower four, estimates them and bounds its own error. All rows are estimated
// by the upper halves, a quarter of the bytes of bf16; of those that can contend then the lower halves are read too,
// and what is left is computed exactly. The best rows are those of the whole product, and their products have its bits;
// so a drafter that only wants the best ids of its head drafts the same with a screen and without.
#pragma once
#include <span>
#include <vector>

#include "model/decoder.h"

namespace deltaring {

using Ids = std::vector<int32_t>;  // ascending

// The index of the largest number, of equal ones the first; 0 when there is none.
int32_t index_of_largest(Decoder& decoder, std::span<float> logits);

class Screen {
 public:
  // Rows from which on a screen is worth its memory: smaller matrices lie in cache.
  static constexpr int64_t kLeastRows = 16384;

  // Whether a matrix is screened, where the backend has the ops, and bytes that it then takes; 0 if not.
  static bool worth(int64_t rows, int64_t columns) { return rows >= kLeastRows && columns <= 1 << 16; }
  static bool serves(const OpTable& ops) { return ops.linear_i4 && ops.contenders; }
  static int64_t planned_bytes(int64_t rows, int64_t columns);

  // The matrix [N, K] outlives the screen. Bounds are the tighter the better `sizes` [K], if there are any, say how
  // large the numbers of x are beside each other: behind a norm, its weights.
  explicit Screen(const View<2>& matrix, std::span<const float> sizes = {});

  // Estimates `factor` > 0 times x [M, K] times rows [0, valid), into out [M, N], which stays as it is until the next
  // call. What follows is about these. False, and nothing follows, when a number of x is not finite.
  bool estimate(Decoder& decoder, View<2> x, float factor, int64_t valid, View<2> out);

  // At most count ids that have high estimates in row m: a place to start.
  Ids promising(int64_t m, size_t count) const;
  // Of each row of x, which was estimated, the ids that are not certainly below `count` others.
  std::vector<Ids> best(Decoder& decoder, View<2> x, size_t count) const;

  // Some rows of an estimate, from `first` on.
  struct Part {
    const Screen& screen;
    int64_t first;
  };
  // Of each row of a sum of one estimate, or two, the ids that may reach its least.
  static std::vector<Ids> contenders(Decoder& decoder, std::span<const Part> sum, std::span<const float> least);

  // out[i] = x . row ids[i], or out[i] += that: the bits of the whole product. x [1, K].
  void exact(Decoder& decoder, View<2> x, std::span<const int32_t> ids, std::span<float> out,
             bool accumulate = false) const;
  // Of some ids, not none, the one with the largest product; of equal ones the lowest.
  int32_t largest(Decoder& decoder, View<2> x, const Ids& ids) const;

 private:
  int64_t width() const { return padded_ / 2; }  // bytes of a row of half codes
  void encode(int64_t n, std::span<const float> w);
  // The most that the product of row m and an id can be, by whole codes.
  std::vector<float> most_by_both(Decoder& decoder, int64_t m, const Ids& ids) const;

  const View<2> matrix_;
  const int64_t padded_;  // K
  Arena arena_;
  uint8_t *upper_, *lower_;  // [N, width] halves of codes: row n is about scale[n] (code - 127.5)
  // What x says of an error e is at most |x / d| |d e|, the least where d is the root of the size of x.
  std::vector<float> d_;  // [K]
  // [N] the length |d e| of what the upper halves lack of a row, and of what both lack, or a little more. One that is
  // not finite has a scale of 0 and infinite errors, so it always contends.
  struct Whole {
    float error, length;  // length: of the row and of its codes, at most
  };
  std::vector<float> scale_, upper_error_;
  std::vector<Whole> whole_;
  std::vector<int32_t> upper_pairs_, lower_pairs_;  // [N] pairs_of_i4
  std::vector<float> error_peaks_;                  // [blocks] the largest upper_error_ of each
  float ratio_ = 0;                                 // the largest of a length to its upper_error_

  // Of the last estimate, which is unit[m] times what lies in out. It is off by slack[m] upper errors of a row, and by
  // whole codes by near[m] errors and far[m] lengths: for what those lack, for what x lacks, and for rounding, in the
  // exact product as here.
  std::vector<int8_t> x_;  // [M, padded K]
  std::vector<float> unit_, slack_, near_, far_;
  float factor_ = 1;
  int64_t valid_ = 0;
  View<2> out_;
  std::vector<float> peaks_;  // [M, blocks]
};

}  // namespace deltaring
