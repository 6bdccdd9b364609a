// Products with four-bit codes: estimates of a matrix's products for a quarter of the bytes of bf16 and less
// arithmetic. Which rows of the matrix are worth an exact product is then a question of bounds.
//
// Two products take one multiplication (Winograd 1968): for numbers x, y of a vector and codes u, v of a row
//   (x + v)(y + u) = x u + y v + x y + u v,
// where x y belongs to the vector and u v to the row, which is why a row brings the sum of its u v along.
#pragma once
#include <cstdint>

#include "base/view.h"

namespace deltaring {

// out[m, n] = scale[r] * sum_k x[m, k] (2 w[r, k] - 15),  r = rows[n], or n without rows.
// The sum is exact; it is rounded to f32, and so is the product. Codes are 0 to 15, so their weights are odd numbers
// from -15 to 15.
struct LinearI4Args {
  static constexpr int64_t kGroup = 64;       // codes that lie together: byte i < 32 has code i below and 32 + i above
  static constexpr int64_t kMostK = 1 << 18;  // whose sums stay in int32
  static constexpr int kMostX = 82;           // so that two products of pairs fit int16
  static constexpr int64_t kPeak = 16;        // columns behind one peak: their f32 fill a cache line

  int64_t M, N, K;       // K a multiple of kGroup; zeros of x fill up
  const int8_t* x;       // [M, K], -kMostX to kMostX
  const uint8_t* w;      // [rows of w, K / 2]
  const float* scale;    // [rows of w], finite
  const int32_t* pairs;  // [rows of w] pairs_of_i4 of each
  const int32_t* rows;   // [N], each in [0, rows of w), or null
  View<2> out;           // [M, N] f32, N contiguous
  float* peaks;          // [M, ceil(N / kPeak)] the largest of each kPeak columns, or null
};

void check(const LinearI4Args& args);

// Of a row of K codes: the sum over all that lie in one byte of u (v + kMostX + 8), with u, v = the code below and the
// one above less 8.
int32_t pairs_of_i4(const uint8_t* row, int64_t K);

}  // namespace deltaring
