// Coins for sampling: a pure function of (seed, position, purpose). No stream, no state, nothing to save or rewind.
#pragma once
#include <array>
#include <cstdint>

namespace deltaring {

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): 128 bits of counter under a
// 64-bit key give 128 random bits.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; round++) {
    const uint64_t even = uint64_t{0xd2511f53u} * counter[0];
    const uint64_t odd = uint64_t{0xcd9e8d57u} * counter[2];
    counter = {static_cast<uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(odd),
               static_cast<uint32_t>(even >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(even)};
    key = {key[0] + 0x9e3779b9u, key[1] + 0xbb67ae85u};
  }
  return counter;
}

// What a coin decides. Acceptance keeps the target's law only if the three are independent: given that u * q(d) >= p(d)
// the accept coin is no longer uniform, and given d neither is the draft coin that chose it, so neither may choose
// again. One accept and one residual coin per position are enough. Draft coins are another step's with every step: a
// draft behind a rejected one is drawn anew, and what a scheduler learnt from the first draw must say nothing about the
// second.
enum class Coin : uint32_t {
  draft,     // draws the drafter's token from q
  accept,    // keeps or rejects it
  residual,  // draws the target's own token: behind a rejection, behind a whole window, and in plain decoding
};

// Uniform in [0, 1), a multiple of 2^-53. `position` is the absolute position of the token that is being decided, so
// neither batching nor the split into windows reaches a request's coins.
constexpr double uniform(uint64_t seed, int64_t position, Coin coin) {
  const auto place = static_cast<uint64_t>(position);
  const auto bits =
      philox4x32({static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32), static_cast<uint32_t>(coin), 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>((uint64_t{bits[0]} << 32 | bits[1]) >> 11) * 0x1p-53;
}

// The seed of the draft coins of the step whose anchor stands at a position.
constexpr uint64_t step_seed(uint64_t seed, int64_t anchor) {
  const auto place = static_cast<uint64_t>(anchor);
  const auto bits = philox4x32({static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32), 0, 1},
                               {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return uint64_t{bits[0]} << 32 | bits[1];
}

}  // namespace deltaring
