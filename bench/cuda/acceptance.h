// Recorded acceptance: how many tokens real verify steps kept, one step after the other.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace deltaring::bench {

struct Acceptance {
  std::string name;           // drafter/T=..
  int64_t T = 0;              // windows of that many tokens
  std::vector<int32_t> kept;  // of each step, anchor included, in [1, T]

  // What row b of B keeps in a step: rows start evenly spread over the recording, which repeats itself.
  int32_t at(int64_t b, int64_t B, int64_t step) const {
    const auto size = static_cast<int64_t>(kept.size());
    return kept[static_cast<size_t>((b * size / B + step) % size)];
  }
};

// The recordings of windows of T tokens in a file that record_acceptance wrote, last a mixture of them whose mean is
// kServiceMean where there can be one: sequences of the slower drafter, then as many of the faster one as it takes. Of
// T = 1 the only one there can be. Throws Error naming the file.
constexpr double kServiceMean = 3.6;  // tokens a step
std::vector<Acceptance> recorded_acceptance(const std::string& file, int64_t T);

}  // namespace deltaring::bench
