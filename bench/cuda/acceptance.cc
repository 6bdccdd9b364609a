#include "cuda/acceptance.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"

namespace deltaring::bench {

namespace {

struct Recording {
  std::string drafter;
  std::vector<std::vector<int32_t>> sequences;  // of a prompt each
};

double mean(const std::vector<int32_t>& kept) {
  return std::accumulate(kept.begin(), kept.end(), 0.0) / static_cast<double>(kept.size());
}

void append(std::vector<int32_t>& kept, const std::vector<int32_t>& more) {
  kept.insert(kept.end(), more.begin(), more.end());
}

std::vector<int32_t> joined(const Recording& recording) {
  std::vector<int32_t> kept;
  for (const std::vector<int32_t>& sequence : recording.sequences) append(kept, sequence);
  return kept;
}

std::vector<Recording> read(const std::string& file, int64_t T) {
  std::vector<Recording> all;
  const nlohmann::json whole = nlohmann::json::parse(std::ifstream(file));
  for (const nlohmann::json& recording : whole.at("recordings")) {
    if (recording.at("T") != T) continue;
    Recording& r = all.emplace_back(Recording{recording.at("drafter"), {}});
    for (const nlohmann::json& sequence : recording.at("sequences")) r.sequences.push_back(sequence.at("kept"));
    const std::vector<int32_t> kept = joined(r);
    const auto possible = [T](int32_t k) { return k >= 1 && k <= T; };
    check(!kept.empty() && std::all_of(kept.begin(), kept.end(), possible), "{}: steps keep 1 to {} tokens", r.drafter,
          T);
  }
  check(!all.empty(), "it has no recording of T = {}", T);
  return all;
}

std::optional<Acceptance> mixture(const std::vector<Recording>& all, int64_t T) {
  for (const Recording& slow : all) {
    for (const Recording& fast : all) {
      std::vector<int32_t> kept = joined(slow);
      if (mean(kept) >= kServiceMean || mean(joined(fast)) <= kServiceMean) continue;
      size_t taken = 0;
      for (; taken < fast.sequences.size() && mean(kept) < kServiceMean; taken++) append(kept, fast.sequences[taken]);
      return Acceptance{.name = fmt::format("{} and {} of {} prompts of {}/T={}", slow.drafter, taken,
                                            fast.sequences.size(), fast.drafter, T),
                        .T = T,
                        .kept = kept};
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<Acceptance> recorded_acceptance(const std::string& file, int64_t T) {
  if (T == 1) return {{.name = "plain decoding", .T = 1, .kept = {1}}};
  try {
    const std::vector<Recording> recordings = read(file, T);
    std::vector<Acceptance> all;
    for (const Recording& r : recordings)
      all.push_back({.name = fmt::format("{}/T={}", r.drafter, T), .T = T, .kept = joined(r)});
    if (std::optional<Acceptance> mixed = mixture(recordings, T)) all.push_back(*std::move(mixed));
    return all;
  } catch (const std::exception& error) {
    fail(ErrorKind::invalid_argument, "--acceptance {}: {}; a file that record_acceptance wrote works", file,
         error.what());
  }
}

}  // namespace deltaring::bench
