#include "draft/ngram.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "draft/token_hash.h"

namespace deltaring {

namespace {

constexpr int32_t kLongestMatch = 32;
constexpr size_t kProbes = 32;       // at load <= 1/2 chance does not get here; crafted collisions end here
constexpr size_t kLeastSlots = 128;  // of a table

// Whether the n tokens before `end` occur before `earlier` too; earlier 0 = nowhere.
bool same(const int32_t* tokens, int64_t end, int64_t earlier, int64_t n) {
  return earlier != 0 && std::equal(tokens + end - n, tokens + end, tokens + earlier - n);
}

// Where the n-gram before `end` is kept: its own slot, else an empty one, else that of another n-gram, which gives way.
int32_t& slot(std::vector<int32_t>& table, const int32_t* tokens, int64_t end, int64_t n) {
  const size_t mask = table.size() - 1;
  size_t at = hash_tokens(tokens + end - n, n) & mask;
  for (size_t probe = 1; table[at] != 0 && probe < kProbes && !same(tokens, end, table[at], n); probe++) {
    at = (at + probe) & mask;  // triangular steps visit every slot of a power of two
  }
  return table[at];
}

}  // namespace

NgramDrafter::NgramDrafter(const NgramOptions& options) : options_(options) {
  check(1 <= options.min_match && options.min_match <= options.max_match && options.max_match <= kLongestMatch,
        "ngram match lengths are {}..{}; 1 <= min <= max <= {} works, for example 2..4", options.min_match,
        options.max_match, kLongestMatch);
}

void NgramDrafter::reset(int32_t seat) { seats_.erase(seat); }

void NgramDrafter::propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) {
  begin_proposals(*this, requests, proposals);
  for (size_t i = 0; i < requests.size(); i++) {
    const DraftRequest& request = requests[i];
    const std::span<const int32_t> tokens = request.tokens;
    std::vector<int32_t>& drafts = proposals[i].tokens;
    if (request.seat < 0 || tokens.empty()) continue;

    Index& index = seats_[request.seat];
    update(index, tokens);
    const int64_t end = request.drafts > 0 ? match(index, tokens) : 0;
    if (end == 0) continue;
    const size_t rest = tokens.size() - static_cast<size_t>(end);
    for (size_t j = 0; j < static_cast<size_t>(request.drafts); j++) {
      drafts.push_back(j < rest ? tokens[end + j] : drafts[j - rest]);
    }
  }
}

// Leaves out the n-grams that end with the history: a suffix must not find itself.
void NgramDrafter::update(Index& index, std::span<const int32_t> tokens) const {
  const auto last = static_cast<int64_t>(tokens.size()) - 1;
  if (index.done > last || index.tail != fingerprint(tokens, index.done)) index = {};
  const size_t lengths = options_.max_match - options_.min_match + 1;
  if (index.tables.empty() || index.tables[0].size() < 2 * tokens.size()) {
    const size_t slots = std::max(kLeastSlots, std::bit_ceil(2 * tokens.size()));
    index.tables.assign(lengths, std::vector<int32_t>(slots));
    index.done = 0;
  }
  for (int64_t end = index.done + 1; end <= last; end++) {
    for (int64_t n = options_.min_match; n <= std::min<int64_t>(options_.max_match, end); n++) {
      int32_t& kept = slot(index.tables[n - options_.min_match], tokens.data(), end, n);
      const bool keep = options_.occurrence == Occurrence::earliest && same(tokens.data(), end, kept, n);
      if (!keep) kept = static_cast<int32_t>(end);
    }
  }
  index.done = last;
  index.tail = fingerprint(tokens, last);
}

// The end of an earlier occurrence of the longest suffix that has one, else 0.
int64_t NgramDrafter::match(Index& index, std::span<const int32_t> tokens) const {
  const auto end = static_cast<int64_t>(tokens.size());
  for (int64_t n = std::min<int64_t>(options_.max_match, end - 1); n >= options_.min_match; n--) {
    const int32_t earlier = slot(index.tables[n - options_.min_match], tokens.data(), end, n);
    if (same(tokens.data(), end, earlier, n)) return earlier;
  }
  return 0;
}

size_t NgramDrafter::bytes() const {
  size_t sum = 0;
  for (const auto& [seat, index] : seats_) {
    for (const auto& table : index.tables) sum += table.size() * sizeof(int32_t);
  }
  return sum;
}

}  // namespace deltaring
