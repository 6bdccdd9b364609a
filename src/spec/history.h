// How often each id stands in a request's tokens: what penalties are computed from.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "ops/sample.h"

namespace deltaring {

class TokenHistory {
 public:
  // Counts of tokens [n], of which the first `prompt` are the prompt. A list that is longer than the last one continues
  // it: only what is new is looked at. A shorter one is counted afresh.
  std::span<const TokenCount> counts(std::span<const int32_t> tokens, int64_t prompt);

 private:
  std::unordered_map<int32_t, size_t> place_;  // of an id in counts_
  std::vector<TokenCount> counts_;
  size_t counted_ = 0;
  int64_t prompt_ = 0;
};

}  // namespace deltaring
