#include "draft/dflash2.h"

#include <algorithm>
#include <cmath>

#include "base/draw.h"
#include "base/rng.h"
#include "base/scratch.h"

namespace deltaring {

namespace {

// The ids of the `count` largest numbers of z [valid], largest first, of equal ones the lowest id first; NaN counts as
// less than any number. Fewer when valid is less.
std::vector<int32_t> largest(const float* z, int64_t valid, size_t count) {
  const auto key = [z](int64_t id) { return std::isnan(z[id]) ? -INFINITY : z[id]; };
  std::vector<int32_t> best;
  for (int64_t id = 0; id < valid; id++) {
    if (best.size() == count && !(key(id) > key(best.back()))) continue;
    if (best.size() == count) best.pop_back();
    const auto at = std::find_if(best.begin(), best.end(), [&](int32_t other) { return key(id) > key(other); });
    best.insert(at, static_cast<int32_t>(id));
  }
  return best;
}

}  // namespace

ScratchList<DFlash2Drafter> DFlash2Drafter::scratch(const BlockConfig& c, int64_t seats) {
  using Own = DFlash2Drafter;
  if (c.selector_rank == 0) return {};
  return {{&Own::projected_, seats, c.selector_rank},
          {&Own::before_, seats, c.selector_rank},
          {&Own::behind_, c.selector_top_k, c.selector_rank}};
}

DFlash2Drafter::DFlash2Drafter(BlockWeights weights, HybridModel& model, StatePool& pool, int64_t valid_ids)
    : BlockDrafter(std::move(weights), model, pool, valid_ids) {
  arena_ = allocate_scratch(*this, scratch(weights_.config, pool.options().seats), "scratch of the path selector");
}

void DFlash2Drafter::select(const DraftRequest& request, const std::vector<int32_t>& candidates,
                            const std::vector<double>& scores, Proposal& proposal) const {
  const double best = *std::max_element(scores.begin(), scores.end());
  const auto first = static_cast<size_t>(std::find(scores.begin(), scores.end(), best) - scores.begin());
  if (request.sampling.temperature == 0) {
    proposal.tokens.push_back(candidates[std::min(first, candidates.size() - 1)]);
    return;
  }
  std::vector<float> law(scores.size());
  double sum = 0;
  for (const double score : scores) sum += std::exp((score - best) / request.sampling.temperature);
  for (size_t i = 0; i < law.size(); i++) {
    law[i] = static_cast<float>(std::exp((scores[i] - best) / request.sampling.temperature) / sum);
  }
  const int64_t place = static_cast<int64_t>(request.tokens.size() + proposal.tokens.size());
  const int32_t drawn =
      std::max(0, sample(law.data(), static_cast<int64_t>(law.size()), uniform(request.seed, place, Coin::draft)));
  proposal.tokens.push_back(candidates[drawn]);
  proposal.q.insert(proposal.q.end(), law.begin(), law.end());
  proposal.q_ids.insert(proposal.q_ids.end(), candidates.begin(), candidates.end());
}

BlockDrafter::Contenders DFlash2Drafter::candidates_of(const View<2>& z, int64_t i, int64_t row) {
  const auto count = static_cast<size_t>(weights_.config.selector_top_k);
  Contenders out;
  if (screened()) {
    const Contenders some = contenders_of(row, count);
    for (const int32_t at : largest(some.logits.data(), static_cast<int64_t>(some.ids.size()), count)) {
      out.ids.push_back(some.ids[at]), out.logits.push_back(some.logits[at]);
    }
    return out;
  }
  out.ids = largest(z.f32(i), valid_ids_, count);
  for (const int32_t id : out.ids) out.logits.push_back(*z.f32(i, id));
  return out;
}

void DFlash2Drafter::choose(const Predictions& p, std::span<const DraftRequest> requests,
                            std::span<Proposal> proposals) {
  Decoder& decoder = model_.decoder();
  const SelectorWeights& w = weights_.selector;
  const int64_t R = weights_.config.selector_rank;
  for (int64_t k = 0; k < p.positions(); k++) {
    if (R == 0) {
      draw(p, k, requests, proposals);
      continue;
    }
    const View<2> z = logits(p, k), projected = projected_.rows(0, z.shape[0]), before = before_.rows(0, z.shape[0]);
    const std::vector<int32_t> predecessor = predecessors(p, k, requests, proposals);
    decoder.linear(hidden(p, k), w.hidden_projection, projected);
    decoder.ops().embedding({.ids = predecessor.data(), .table = w.predecessor_codebook, .out = before},
                            decoder.stream());
    for (int64_t i = 0; i < z.shape[0]; i++) {
      const auto [candidates, candidate_logits] = candidates_of(z, i, p.first[k] + i);
      const View<2> behind = behind_.rows(0, static_cast<int64_t>(candidates.size()));
      decoder.ops().embedding({.ids = candidates.data(), .table = w.successor_codebook, .out = behind},
                              decoder.stream());
      std::vector<double> scores;
      for (size_t c = 0; c < candidates.size(); c++) {
        double score = candidate_logits[c];
        const float* s = behind.f32(static_cast<int64_t>(c));
        for (int64_t j = 0; j < R; j++) score += double{*before.f32(i, j)} * *projected.f32(i, j) * s[j];
        scores.push_back(score);
      }
      const int32_t request = p.requests[k][i];
      select(requests[request], candidates, scores, proposals[request]);
    }
  }
}

}  // namespace deltaring
