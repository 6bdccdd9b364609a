// Which ids can be among the best, by estimates that know how far they may be off.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/view.h"

namespace deltaring {

// Number n of row m: unit[m] value[m, n], at most slack[m] error[n] off. What is known of blocks of kBlock numbers lets
// whole blocks be passed over.
struct Estimate {
  static constexpr int64_t kBlock = 16;

  View<2> value;             // [M, N] f32, N contiguous
  const float* value_peaks;  // [M, blocks of valid ids] the largest of each block, or NaN
  const float* unit;         // [M] > 0
  const float* error;        // [N] >= 0, infinite where nothing is known
  const float* error_peaks;  // [blocks]
  const float* slack;        // [M] > 0
};

// ids[m]: of [0, valid), ascending, those whose sum of estimates may reach least[m]. What a comparison cannot tell, NaN
// on either side, may. rest[m], if it is asked for: of each of these, what all estimates but the first make at most.
struct ContendersArgs {
  std::span<const Estimate> sum;  // one at least, all of one M
  int64_t valid;                  // <= N
  const float* least;             // [M]
  std::vector<int32_t>* ids;      // [M], written over
  std::vector<float>* rest;       // [M], written over, or null
};

void check(const ContendersArgs& args);

}  // namespace deltaring
