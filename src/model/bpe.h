// Byte-level byte-pair encoding: bytes become ids, then the pair with the lowest rank is merged until none is left.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace deltaring {

struct BpeMerge {
  int32_t left, right, merged;  // ids
};

class Bpe {
 public:
  // Buffers of one caller, reused from word to word.
  struct Workspace {
    struct Symbol {
      int32_t id;              // -1 once merged into its left neighbour
      int32_t previous, next;  // positions, -1 at the ends
    };
    struct Candidate {
      int32_t rank, position, merged;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // byte_ids[b] is the id of the token that is the single byte b. The rank of a merge is its place in `merges`; of a
  // pair that occurs twice the last one counts.
  Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const BpeMerge> merges);

  // Appends the ids of one word of fewer than 2^31 bytes. O(n log n).
  void encode(std::string_view word, Workspace& workspace, std::vector<int32_t>& ids) const;

 private:
  struct Target {
    int32_t rank, merged;
  };

  const Target* find(int32_t left, int32_t right) const;
  void push_pair(Workspace& workspace, int32_t position) const;

  std::array<int32_t, 256> byte_ids_;
  std::unordered_map<uint64_t, Target> targets_;  // key: left id, right id
};

}  // namespace deltaring
