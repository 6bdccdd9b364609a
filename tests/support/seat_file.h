// Forgeries of exported seats: fields found by their values, and the checksum made good again.
#pragma once
#include <xxhash.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace deltaring::test {

using SeatFile = std::vector<std::byte>;

// The last eight bytes are the XXH3 checksum of those before.
inline void sign(SeatFile& file) {
  const XXH64_hash_t sum = XXH3_64bits(file.data(), file.size() - sizeof sum);
  std::memcpy(file.data() + file.size() - sizeof sum, &sum, sizeof sum);
}

inline bool is_signed(SeatFile file) {
  const SeatFile before = file;
  sign(file);
  return file == before;
}

// Where the first 64-bit word of that value stands.
inline size_t find_word(const SeatFile& file, int64_t value) {
  for (size_t at = 0; at + 8 <= file.size(); at += 8)
    if (std::memcmp(&file[at], &value, 8) == 0) return at;
  throw std::runtime_error("no word " + std::to_string(value) + " in the file");
}

inline SeatFile with_word(SeatFile file, size_t at, int64_t value) {
  std::memcpy(&file[at], &value, 8);
  sign(file);
  return file;
}

}  // namespace deltaring::test
