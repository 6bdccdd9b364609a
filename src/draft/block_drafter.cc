#include "draft/block_drafter.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/scratch.h"
#include "draft/dense_draw.h"
#include "draft/dflash.h"
#include "draft/dflash2.h"
#include "draft/dspark.h"

namespace deltaring {

namespace {

int64_t head_rows(const BlockConfig& c) { return c.draft_vocab_size > 0 ? c.draft_vocab_size : c.vocab_size; }

// Behind a soft cap, or times 0, different logits may be equal, which a screen cannot see.
bool screens(const BlockConfig& c) {
  return c.final_logit_softcapping == 0 && c.output_multiplier > 0 && Screen::worth(head_rows(c), c.hidden_size);
}

}  // namespace

ScratchList<BlockDrafter> BlockDrafter::scratch(const BlockConfig& c, int64_t seats) {
  return {{&BlockDrafter::logits_, seats * c.drafts(), head_rows(c)}, {&BlockDrafter::law_, 1, head_rows(c)}};
}

int64_t BlockDrafter::scratch_bytes(const BlockConfig& c, int64_t max_tokens, int64_t seats) {
  int64_t screened = screens(c) ? Screen::planned_bytes(head_rows(c), c.hidden_size) : 0;
  if (screened > 0 && c.markov_rank > 0) screened += Screen::planned_bytes(head_rows(c), c.markov_rank);
  return screened + BlockBackbone::scratch_bytes(c, max_tokens, seats) + deltaring::scratch_bytes(scratch(c, seats)) +
         deltaring::scratch_bytes(DFlash2Drafter::scratch(c, seats)) +
         deltaring::scratch_bytes(DSparkDrafter::scratch(c, seats));
}

BlockDrafter::BlockDrafter(BlockWeights weights, HybridModel& model, StatePool& pool, int64_t valid_ids)
    : weights_(std::move(weights)),
      model_(model),
      valid_ids_(weights_.target_ids.empty() ? valid_ids : weights_.config.draft_vocab_size),
      backbone_(weights_, model, pool) {
  for (const int32_t id : weights_.target_ids) {
    if (id >= valid_ids) {
      fail(ErrorKind::corrupt, "{}: d2t leads to id {}, which is no token of the target; its ids are [0, {})",
           weights_.config.where, id, valid_ids);
    }
  }
  arena_ = allocate_scratch(*this, scratch(weights_.config, pool.options().seats), "logits of the drafter");
  if (screens(weights_.config) && Screen::serves(model.decoder().ops())) screen_.emplace(head_matrix(), weights_.norm);
}

const View<2>& BlockDrafter::head_matrix() const {
  return weights_.config.draft_vocab_size > 0 ? weights_.lm_head : model_.weights().lm_head;
}

void BlockDrafter::head(int64_t rows) {
  const BlockConfig& c = weights_.config;
  const View<2> out = logits_.rows(0, rows);
  model_.decoder().linear(backbone_.hidden(0, rows), head_matrix(), out);
  const float multiplier = c.output_multiplier, cap = c.final_logit_softcapping;
  if (multiplier == 1 && cap == 0) return;
  for (int64_t i = 0; i < rows * out.shape[1]; i++) {
    float& z = out.f32()[i];
    z *= multiplier;
    if (cap > 0) z = cap * std::tanh(z / cap);
  }
}

void BlockDrafter::propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) {
  begin_proposals(*this, requests, proposals);
  const Predictions predictions = backbone_.run(requests);
  rows_ = predictions.rows();
  if (rows_ == 0) return;
  const bool all = law_is_dense() && std::ranges::any_of(requests, [](const DraftRequest& r) {
                     return r.drafts > 0 && r.sampling.temperature != 0;
                   });
  screened_ = !all && screen_ &&
              screen_->estimate(model_.decoder(), hidden(), weights_.config.output_multiplier, valid_ids_, logits());
  best_.clear();
  if (!screened_) head(rows_);
  choose(predictions, requests, proposals);
}

std::vector<float> BlockDrafter::exact(int64_t row, std::span<const int32_t> ids) {
  std::vector<float> out(ids.size());
  screen_->exact(model_.decoder(), backbone_.hidden(row, 1), ids, out);
  for (float& z : out) z *= weights_.config.output_multiplier;
  return out;
}

BlockDrafter::Contenders BlockDrafter::contenders_of(int64_t row, size_t count) {
  if (best_.empty()) best_ = screen_->best(model_.decoder(), hidden(), count);
  return {.ids = best_[static_cast<size_t>(row)], .logits = exact(row, best_[static_cast<size_t>(row)])};
}

void BlockDrafter::draw(const Predictions& p, int64_t position, std::span<const DraftRequest> requests,
                        std::span<Proposal> proposals) {
  Decoder& decoder = model_.decoder();
  const View<2> rows = logits(p, position);
  if (screened_) {
    for (int64_t i = 0; i < rows.shape[0]; i++) {
      Contenders some = contenders_of(p.first[position] + i, 1);
      proposals[p.requests[position][i]].tokens.push_back(target_id(some.ids[index_of_largest(decoder, some.logits)]));
    }
    return;
  }
  draw_drafts(decoder, {rows, law_, valid_ids_, weights_.target_ids}, p.requests[position], requests, proposals);
}

std::vector<int32_t> BlockDrafter::predecessors(const Predictions& p, int64_t position,
                                                std::span<const DraftRequest> requests,
                                                std::span<const Proposal> proposals) const {
  std::vector<int32_t> ids;
  for (const int32_t i : p.requests[position]) {
    ids.push_back(position == 0 ? requests[i].tokens.back() : proposals[i].tokens.back());
  }
  return ids;
}

std::unique_ptr<BlockDrafter> make_block_drafter(BlockWeights weights, HybridModel& model, StatePool& pool,
                                                 int64_t valid_ids) {
  switch (weights.config.kind()) {
    case BlockKind::dflash:
      return std::make_unique<DFlashDrafter>(std::move(weights), model, pool, valid_ids);
    case BlockKind::dflash2:
      return std::make_unique<DFlash2Drafter>(std::move(weights), model, pool, valid_ids);
    case BlockKind::dspark:
      break;
  }
  return std::make_unique<DSparkDrafter>(std::move(weights), model, pool, valid_ids);
}

}  // namespace deltaring
