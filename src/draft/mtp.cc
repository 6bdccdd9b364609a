#include "draft/mtp.h"

#include <algorithm>

#include "base/error.h"
#include "base/scratch.h"
#include "draft/dense_draw.h"

namespace deltaring {

namespace {

const MtpWeights& head_of(const HybridModel& model) {
  if (!model.weights().mtp) {
    fail(ErrorKind::unsupported,
         "--speculative-algorithm eagle: the model has no MTP head (no mtp.* tensors); ngram works with every model");
  }
  return *model.weights().mtp;
}

}  // namespace

ScratchList<MtpDrafter> MtpDrafter::scratch(const ModelConfig& config, int64_t max_tokens, int64_t seats) {
  const int64_t H = config.hidden_size, vocab = config.vocab_size;
  return {{&MtpDrafter::pairs_, max_tokens, 2 * H},
          {&MtpDrafter::out_, max_tokens, H},
          {&MtpDrafter::chain_, seats, H},
          {&MtpDrafter::logits_, seats, vocab},
          {&MtpDrafter::law_, 1, vocab}};
}

int64_t MtpDrafter::scratch_bytes(const ModelConfig& config, int64_t max_tokens, int64_t seats) {
  return deltaring::scratch_bytes(scratch(config, max_tokens, seats)) +
         PendingRows::planned_bytes(seats, config.hidden_size) +
         Screen::planned_bytes(config.vocab_size, config.hidden_size);
}

MtpDrafter::MtpDrafter(HybridModel& model, StatePool& pool, int64_t valid_ids)
    : model_(model),
      weights_(head_of(model)),
      kv_(pool.kv(pool.shape().kv_layers - 1)),
      valid_ids_(valid_ids),
      pending_(pool, name(), model.config().hidden_size) {
  arena_ = allocate_scratch(*this, scratch(model.config(), model.decoder().max_tokens(), pool.options().seats),
                            "scratch of the MTP head, --chunked-prefill-size");
  const View<2>& head = model.weights().lm_head;
  if (Screen::worth(head.shape[0], head.shape[1]) && Screen::serves(model.decoder().ops())) screen_.emplace(head);
}

View<2> MtpDrafter::join(std::span<const Row> rows) {
  const int64_t tokens = static_cast<int64_t>(rows.size()), H = out_.shape[1];
  Decoder& decoder = model_.decoder();
  const View<2> pairs = pairs_.rows(0, tokens), out = out_.rows(0, tokens);
  View<2> embedding = pairs, hidden = pairs;
  embedding.shape[1] = hidden.shape[1] = H;
  hidden.data = pairs.address(H);
  std::vector<int32_t> next;
  for (int64_t i = 0; i < tokens; i++) {
    std::copy_n(rows[i].data, H, hidden.f32(i));
    next.push_back(rows[i].next);
  }
  decoder.ops().embedding({.ids = next.data(), .table = model_.weights().embed_tokens, .out = embedding},
                          decoder.stream());
  decoder.norm(weights_.pre_fc_norm_embedding, embedding, embedding);
  decoder.norm(weights_.pre_fc_norm_hidden, hidden, hidden);
  decoder.linear(pairs, weights_.fc, out);
  return out;
}

void MtpDrafter::write(std::span<const Row> list) {
  PendingRows::in_passes(list, out_.shape[0], [this](std::span<const Row> some, const Rows& rows) {
    model_.decoder().attention_context(weights_.layer, rows, kv_, join(some));
  });
}

void MtpDrafter::run(std::span<const Row> list) {
  PendingRows::in_passes(list, out_.shape[0], [this](std::span<const Row> some, const Rows& rows) {
    const View<2> out = join(some);
    model_.decoder().attention_layer(weights_.layer, rows, kv_, out);
    model_.decoder().norm(weights_.norm, out, chain_.rows(0, out.shape[0]));
  });
}

void MtpDrafter::extend(const DraftContext& context) {
  pending_.add(context.rows, context.next, context.hidden, [this](std::span<const Row> rows) { write(rows); });
}

void MtpDrafter::draw(std::span<const DraftRequest> requests, const std::vector<int32_t>& active,
                      std::span<Proposal> proposals) {
  Decoder& decoder = model_.decoder();
  const View<2> logits = logits_.rows(0, static_cast<int64_t>(active.size())), hidden = chain_.rows(0, logits.shape[0]);
  const bool all = std::ranges::any_of(active, [&](int32_t i) { return requests[i].sampling.temperature != 0; });
  if (!all && screen_ && screen_->estimate(decoder, hidden, 1, valid_ids_, logits)) {
    const std::vector<Ids> best = screen_->best(decoder, hidden, 1);
    for (size_t i = 0; i < active.size(); i++) {
      const View<2> row = hidden.rows(static_cast<int64_t>(i), 1);
      proposals[active[i]].tokens.push_back(screen_->largest(decoder, row, best[i]));
    }
    return;
  }
  model_.logits(hidden, logits);
  draw_drafts(decoder, {logits, law_, valid_ids_}, active, requests, proposals);
}

// The newest row goes through the whole head, with the draft that it is for.
void MtpDrafter::catch_up(std::span<const int32_t> seats) {
  pending_.catch_up(seats, 1, [this](std::span<const Row> rows) { write(rows); });
}

void MtpDrafter::propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) {
  begin_proposals(*this, requests, proposals);
  std::vector<int32_t> active, seats;
  PendingRows::List newest;
  for (size_t i = 0; i < requests.size(); i++) {
    const DraftRequest& r = requests[i];
    if (r.drafts < 1 || !pending_.reach(r.seat, static_cast<int64_t>(r.tokens.size()) - 1)) continue;
    const PendingRows::List last = pending_.newest(r.seat);
    if (last.empty() || last.front().next != r.tokens.back()) continue;
    active.push_back(static_cast<int32_t>(i));
    newest.push_back(last.front());
    seats.push_back(r.seat);
  }
  catch_up(seats);
  for (int32_t drafted = 1; !active.empty(); drafted++) {
    run(newest);
    if (drafted == 1)
      for (const Row& row : newest) pending_.written(row.seat);
    draw(requests, active, proposals);
    newest.clear();  // row t of the chain pairs the last output with the token just drafted
    std::vector<int32_t> more;
    for (size_t i = 0; i < active.size(); i++) {
      const DraftRequest& r = requests[active[i]];
      if (r.drafts <= drafted) continue;
      more.push_back(active[i]);
      newest.push_back({.seat = r.seat,
                        .next = proposals[active[i]].tokens.back(),
                        .position = static_cast<int64_t>(r.tokens.size()) - 2 + drafted,
                        .data = chain_.f32(static_cast<int64_t>(i))});
    }
    active = std::move(more);
  }
}

}  // namespace deltaring
