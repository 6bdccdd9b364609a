#include "spec/history.h"

namespace deltaring {

std::span<const TokenCount> TokenHistory::counts(std::span<const int32_t> tokens, int64_t prompt) {
  if (tokens.size() < counted_ || prompt != prompt_) *this = {};
  prompt_ = prompt;
  for (; counted_ < tokens.size(); counted_++) {
    const auto [at, is_new] = place_.try_emplace(tokens[counted_], counts_.size());
    if (is_new) counts_.push_back({.id = tokens[counted_], .output = 0});
    counts_[at->second].output += static_cast<int64_t>(counted_) >= prompt;
  }
  return counts_;
}

}  // namespace deltaring
