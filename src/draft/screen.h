// Which rows of a large matrix can have the largest products with a vector, without reading it: a copy in whole numbers
// estimates them for half the bytes of bf16 and bounds its own error, and what is left is computed exactly. The best
// rows are those of the whole product, and their products have its bits; so a drafter that only wants the best ids of
// its head drafts the same with a screen and without.
#pragma once
#include <span>
#include <vector>

#include "model/decoder.h"

namespace deltaring {

// Products n of one row: unit * value[n], at most slack * error[n] off.
struct Estimate {
  const float* value;
  const float* error;
  float unit, slack;
};

// Ids in [0, valid), ascending, that can be among the `count` largest of sums of estimates: all that do not certainly
// lie below `count` others. At least one estimate.
std::vector<int32_t> contenders(std::span<const Estimate> sum, int64_t valid, size_t count);

// The id in [0, valid) with the largest estimated sum; of equal ones the lowest.
int32_t likeliest(std::span<const Estimate> sum, int64_t valid);

// The index of the largest number, of equal ones the first; 0 when there is none.
int32_t index_of_largest(Decoder& decoder, std::span<float> logits);

class Screen {
 public:
  // Rows from which on a screen is worth its memory: smaller matrices lie in cache.
  static constexpr int64_t kLeastRows = 16384;

  // Whether a matrix is screened, where the backend has the op, and bytes that it then takes; 0 if not.
  static bool worth(int64_t rows, int64_t columns) { return rows >= kLeastRows && columns <= 1 << 16; }
  static int64_t planned_bytes(int64_t rows, int64_t columns);

  // The matrix [N, K] outlives the screen.
  explicit Screen(const View<2>& matrix);

  // Estimates of x w^T into out [M, N], which row() then reads; false, and out says nothing, when a number of x is not
  // finite.
  bool estimate(Decoder& decoder, View<2> x, View<2> out);
  Estimate row(View<2> out, int64_t m) const {
    const auto at = static_cast<size_t>(m);
    return {.value = out.f32(m), .error = error_.data(), .unit = unit_[at], .slack = slack_[at]};
  }

  // out[i] = x . row ids[i], or out[i] += that: the bits of the whole product. x [1, K].
  void exact(Decoder& decoder, View<2> x, std::span<const int32_t> ids, std::span<float> out, bool accumulate = false);
  // Of ids that contend, not none, the one with the largest product; of equal ones the lowest.
  int32_t best(Decoder& decoder, View<2> x, std::span<const int32_t> ids);

 private:
  const View<2> matrix_;
  Arena arena_;
  int8_t* codes_;  // [N, K]: row n is about scale[n] times its codes
  // [N]; a row that is not finite has codes of 0 and an infinite error, so it always contends.
  std::vector<float> scale_, error_;
  std::vector<int16_t> x_;           // [M, K] of the last estimate
  std::vector<float> unit_, slack_;  // [M]
  std::vector<std::byte> gathered_;
};

}  // namespace deltaring
