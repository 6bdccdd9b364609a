// Hashes of token strings, for indexes over a request's history.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

namespace deltaring {

inline uint64_t hash_tokens(const int32_t* tokens, int64_t n) {
  uint64_t h = static_cast<uint64_t>(n);
  for (int64_t i = 0; i < n; i++) {
    h = (h ^ static_cast<uint32_t>(tokens[i])) * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
  }
  return h;
}

// Of the 16 tokens before `end`: a history that does not continue the last one is known by it.
inline uint64_t fingerprint(std::span<const int32_t> tokens, int64_t end) {
  const int64_t n = std::min<int64_t>(end, 16);
  return hash_tokens(tokens.data() + end - n, n);
}

}  // namespace deltaring
