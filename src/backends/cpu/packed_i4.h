// The vectors of linear_i4 as its kernel reads them. Shared by the SIMD targets of linear_i4.cc.
#pragma once
#include <cstdint>
#include <vector>

namespace deltaring::cpu {

struct PackedI4 {
  std::vector<uint8_t> x;      // [M, K]
  std::vector<int16_t> start;  // [M, starts] what the lanes of each sum of 16 bits are at first
  int64_t starts = 0;
  std::vector<int32_t> sum;  // [M] of the numbers of x
};

}  // namespace deltaring::cpu
