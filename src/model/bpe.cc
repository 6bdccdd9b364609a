#include "model/bpe.h"

#include <algorithm>
#include <tuple>

namespace deltaring {

namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Heap order: lowest rank on top, the leftmost of equal ones.
bool comes_later(const Bpe::Workspace::Candidate& a, const Bpe::Workspace::Candidate& b) {
  return std::tie(a.rank, a.position) > std::tie(b.rank, b.position);
}

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const BpeMerge> merges) : byte_ids_(byte_ids) {
  targets_.reserve(merges.size());
  int32_t rank = 0;
  for (const BpeMerge& merge : merges) {
    targets_[pair_key(merge.left, merge.right)] = {.rank = rank++, .merged = merge.merged};
  }
}

const Bpe::Target* Bpe::find(int32_t left, int32_t right) const {
  const auto it = targets_.find(pair_key(left, right));
  return it == targets_.end() ? nullptr : &it->second;
}

void Bpe::push_pair(Workspace& workspace, int32_t position) const {
  const auto& symbol = workspace.symbols[position];
  if (symbol.next < 0) return;
  const Target* target = find(symbol.id, workspace.symbols[symbol.next].id);
  if (!target) return;
  workspace.heap.push_back({.rank = target->rank, .position = position, .merged = target->merged});
  std::push_heap(workspace.heap.begin(), workspace.heap.end(), comes_later);
}

void Bpe::encode(std::string_view word, Workspace& workspace, std::vector<int32_t>& ids) const {
  auto& symbols = workspace.symbols;
  auto& heap = workspace.heap;
  const auto size = static_cast<int32_t>(word.size());
  symbols.clear();
  heap.clear();
  for (int32_t i = 0; i < size; i++) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(word[i])];
    symbols.push_back({.id = id, .previous = i - 1, .next = i + 1 < size ? i + 1 : -1});
  }
  for (int32_t i = 0; i < size; i++) push_pair(workspace, i);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), comes_later);
    const auto candidate = heap.back();
    heap.pop_back();
    auto& left = symbols[candidate.position];
    if (left.id < 0 || left.next < 0) continue;
    auto& right = symbols[left.next];
    // Stale when the pair at this position has changed meanwhile. Only the result is compared, as the reference does:
    // another pair with the same result is merged here, earlier than its own rank.
    const Target* target = find(left.id, right.id);
    if (!target || target->merged != candidate.merged) continue;

    left.id = candidate.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = candidate.position;
    if (left.previous >= 0) push_pair(workspace, left.previous);
    push_pair(workspace, candidate.position);
  }
  for (int32_t i = size > 0 ? 0 : -1; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace deltaring
