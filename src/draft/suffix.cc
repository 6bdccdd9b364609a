#include "draft/suffix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "draft/token_hash.h"

namespace deltaring {

namespace {

constexpr int64_t kKeys[] = {1, 4};  // n-gram lengths of the chains: long matches are found behind many short ones
constexpr size_t kLeastSlots = 128;

}  // namespace

SuffixDrafter::SuffixDrafter(const SuffixOptions& o) : options_(o) {
  check(o.max_match >= 1 && o.max_match <= 256, "suffix: max_match is {}, want 1..256; 24 works", o.max_match);
  check(o.max_spec_factor >= 0 && o.max_spec_factor <= 256, "suffix: max_spec_factor is {}, want [0, 256]; 1 works",
        o.max_spec_factor);
  check(std::abs(o.max_spec_offset) <= 256, "suffix: max_spec_offset is {}, want [-256, 256]; 0 works",
        o.max_spec_offset);
  check(o.min_token_prob > 0 && o.min_token_prob <= 1, "suffix: min_token_prob is {}, want (0, 1]; 0.1 works",
        o.min_token_prob);
  check(o.max_occurrences >= 1, "suffix: max_occurrences is {}, want >= 1; 1024 works", o.max_occurrences);
}

// Leaves out the end of the history: a suffix must not find itself.
void SuffixDrafter::update(Index& index, std::span<const int32_t> tokens) const {
  const auto last = static_cast<int64_t>(tokens.size()) - 1;
  if (index.done > last || index.tail != fingerprint(tokens, index.done)) index = {};
  if (index.chains[0].newest.size() < tokens.size()) {
    for (Chain& chain : index.chains) {
      chain.newest.assign(std::max(kLeastSlots, std::bit_ceil(tokens.size())), 0);
      chain.earlier.reserve(chain.newest.size() + 1);
      chain.earlier.assign(1, 0);
    }
    index.done = 0;
  }
  for (int64_t end = index.done + 1; end <= last; end++) {
    for (size_t i = 0; i < std::size(kKeys); i++) {
      Chain& chain = index.chains[i];
      chain.earlier.push_back(0);
      if (end < kKeys[i]) continue;
      int32_t& newest = chain.newest[hash_tokens(tokens.data() + end - kKeys[i], kKeys[i]) & (chain.newest.size() - 1)];
      chain.earlier.back() = std::exchange(newest, static_cast<int32_t>(end));
    }
  }
  index.done = last;
  index.tail = fingerprint(tokens, last);
}

// Those that match at least `key` tokens, newest first.
std::vector<SuffixDrafter::Occurrence> SuffixDrafter::occurrences(const Chain& chain, int64_t key,
                                                                  std::span<const int32_t> tokens) const {
  std::vector<Occurrence> found;
  const auto size = static_cast<int64_t>(tokens.size());
  if (size < key) return found;
  const size_t slot = hash_tokens(tokens.data() + size - key, key) & (chain.newest.size() - 1);
  int32_t end = chain.newest[slot];
  for (int32_t looked = 0; end != 0 && looked < options_.max_occurrences; looked++, end = chain.earlier[end]) {
    int32_t match = 0;
    while (match < options_.max_match && match < end && tokens[end - 1 - match] == tokens[size - 1 - match]) match++;
    if (match >= key) found.push_back({.end = end, .match = match});
  }
  return found;
}

// Shares multiply to the occurrences that are left over those of the match, so scores are compared without rounding.
SuffixDrafter::Candidate SuffixDrafter::follow(std::span<const Occurrence> matches, std::span<const int32_t> tokens,
                                               int32_t budget) const {
  Candidate out;
  std::vector<int32_t> at;  // where the occurrences go on
  for (const Occurrence& o : matches) at.push_back(o.end);
  const size_t all = at.size() + 1;
  size_t occurrences = all, sum = 0;
  while (static_cast<int32_t>(out.proposal.tokens.size()) < budget) {
    std::erase_if(at, [&](int32_t i) { return i >= static_cast<int32_t>(tokens.size()); });
    std::unordered_map<int32_t, size_t> counts;
    for (const int32_t i : at) counts[tokens[i]]++;
    size_t most = 0;
    int32_t next = -1;
    for (const int32_t i : at) {  // newest first
      if (counts[tokens[i]] > most) most = counts[tokens[i]], next = tokens[i];
    }
    if (most == 0 || static_cast<double>(most) < options_.min_token_prob * static_cast<double>(all)) break;
    out.proposal.tokens.push_back(next);
    out.proposal.confidence.push_back(static_cast<float>(most) / static_cast<float>(occurrences));
    sum += most;
    std::erase_if(at, [&](int32_t i) { return tokens[i] != next; });
    occurrences = at.size();
    for (int32_t& i : at) i++;
  }
  out.score = static_cast<double>(sum) / static_cast<double>(all);
  return out;
}

void SuffixDrafter::propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) {
  begin_proposals(*this, requests, proposals);
  for (size_t r = 0; r < requests.size(); r++) {
    const DraftRequest& request = requests[r];
    const std::span<const int32_t> tokens = request.tokens;
    if (request.seat < 0 || request.drafts <= 0 || tokens.empty()) continue;
    Index& index = seats_[request.seat];
    update(index, tokens);
    std::vector<Occurrence> matches;
    double best = 0;
    for (int32_t n = 1; n <= options_.max_match; n++) {
      for (size_t i = 0; i < std::size(kKeys); i++) {
        if (n == kKeys[i]) matches = occurrences(index.chains[i], kKeys[i], tokens);
      }
      std::erase_if(matches, [&](const Occurrence& o) { return o.match < n; });
      if (matches.empty() && n >= kKeys[1]) break;
      const float allowed = std::floor(static_cast<float>(n) * options_.max_spec_factor + options_.max_spec_offset);
      const int32_t budget = std::min(request.drafts, static_cast<int32_t>(allowed));
      Candidate candidate = follow(matches, tokens, budget);
      if (candidate.score == 0 || candidate.score < best) continue;
      best = candidate.score;
      proposals[r] = std::move(candidate.proposal);
    }
  }
}

size_t SuffixDrafter::bytes() const {
  size_t sum = 0;
  for (const auto& [seat, index] : seats_) {
    for (const Chain& chain : index.chains) sum += (chain.newest.size() + chain.earlier.capacity()) * sizeof(int32_t);
  }
  return sum;
}

}  // namespace deltaring
