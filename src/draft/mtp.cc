#include "draft/mtp.h"

#include <algorithm>
#include <numeric>

#include "base/draw.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/scratch.h"

namespace deltaring {

namespace {

const MtpWeights& head_of(const HybridModel& model) {
  if (!model.weights().mtp) {
    fail(ErrorKind::unsupported,
         "--speculative-algorithm eagle: the model has no MTP head (no mtp.* tensors); ngram works with every model");
  }
  return *model.weights().mtp;
}

void copy_row(const View<2>& from, int64_t i, const View<2>& to, int64_t j) {
  std::copy_n(from.f32(i), from.shape[1], to.f32(j));
}

}  // namespace

MtpDrafter::MtpDrafter(HybridModel& model, const StatePool& pool, int64_t valid_ids)
    : model_(model), weights_(head_of(model)), kv_(pool.kv(pool.shape().kv_layers - 1)), valid_ids_(valid_ids) {
  const int64_t H = model.config().hidden_size, vocab = model.config().vocab_size, seats = pool.options().seats;
  const int64_t max_tokens = model.decoder().max_tokens();
  arena_ = allocate_scratch({{&last_, seats, H},
                             {&chain_, seats, H},
                             {&chained_, seats, H},
                             {&pairs_, max_tokens, 2 * H},
                             {&out_, max_tokens, H},
                             {&logits_, seats, vocab},
                             {&law_, seats, vocab}},
                            "scratch of the MTP head, --chunked-prefill-size");
}

void MtpDrafter::run(const Rows& rows, const int32_t* next, View<2> hidden, View<2> out) {
  const int64_t tokens = hidden.shape[0], H = hidden.shape[1];
  Decoder& decoder = model_.decoder();
  const View<2> pairs = pairs_.rows(0, tokens);
  View<2> embedding = pairs, target = pairs;
  embedding.shape[1] = target.shape[1] = H;
  target.data = pairs.address(H);
  decoder.ops().embedding({.ids = next, .table = model_.weights().embed_tokens, .out = embedding}, decoder.stream());
  decoder.norm(weights_.pre_fc_norm_embedding, embedding, embedding);
  decoder.norm(weights_.pre_fc_norm_hidden, hidden, target);
  decoder.linear(pairs, weights_.fc, out);
  decoder.attention_layer(weights_.layer, rows, kv_, out);
  decoder.norm(weights_.norm, out, out);
}

void MtpDrafter::extend(const DraftContext& context) {
  const View<2> out = out_.rows(0, context.hidden.shape[0]);
  run(context.rows, context.next, context.hidden, out);
  for (int32_t b = 0; b < context.rows.count; b++) {
    if (context.rows.seat[b] >= 0 && context.rows.length(b) > 0)
      copy_row(out, context.rows.start[b + 1] - 1, last_, context.rows.seat[b]);
  }
}

void MtpDrafter::draw(std::span<const DraftRequest> requests, const std::vector<int32_t>& active,
                      std::span<Proposal> proposals) {
  const int64_t vocab = logits_.shape[1];
  Decoder& decoder = model_.decoder();
  const View<2> logits = logits_.rows(0, static_cast<int64_t>(active.size()));
  model_.logits(chained_.rows(0, logits.shape[0]), logits);
  std::vector<int32_t> greedy(active.size());
  decoder.ops().argmax({.logits = logits, .valid = valid_ids_, .out = greedy.data()}, decoder.stream());
  for (size_t i = 0; i < active.size(); i++) {
    const DraftRequest& request = requests[active[i]];
    Proposal& proposal = proposals[active[i]];
    if (request.sampling.temperature == 0) {
      proposal.tokens.push_back(std::max(greedy[i], 0));
      continue;
    }
    const int64_t row = static_cast<int64_t>(i);
    const View<2> law = law_.rows(row, 1);
    decoder.ops().probabilities(
        {.logits = logits.rows(row, 1), .valid = valid_ids_, .params = &request.sampling, .out = law},
        decoder.stream());
    const int64_t position = static_cast<int64_t>(request.tokens.size() + proposal.tokens.size());
    const int32_t token = sample(law.f32(), vocab, uniform(request.seed, position, Coin::draft));
    proposal.tokens.push_back(std::max(token, 0));
    proposal.q.insert(proposal.q.end(), law.f32(), law.f32() + vocab);
  }
}

void MtpDrafter::propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) {
  for (Proposal& proposal : proposals) proposal = {};
  std::vector<int32_t> active(requests.size());
  std::iota(active.begin(), active.end(), 0);
  for (int32_t drafted = 0;; drafted++) {
    std::erase_if(active, [&](int32_t i) { return requests[i].seat < 0 || requests[i].drafts <= drafted; });
    if (active.empty()) return;
    const int64_t count = static_cast<int64_t>(active.size());
    for (int64_t i = 0; i < count; i++) {
      const int32_t seat = requests[active[i]].seat;
      if (drafted == 0) copy_row(last_, seat, chain_, seat);
      copy_row(chain_, seat, chained_, i);
    }
    if (drafted > 0) {  // row t of the chain pairs the last output with the token just drafted
      std::vector<int32_t> start(count + 1), seat(count), next(count);
      std::vector<int64_t> first(count);
      for (int64_t i = 0; i < count; i++) {
        const DraftRequest& request = requests[active[i]];
        start[i + 1] = static_cast<int32_t>(i + 1);
        seat[i] = request.seat;
        first[i] = static_cast<int64_t>(request.tokens.size()) - 2 + drafted;
        next[i] = proposals[active[i]].tokens.back();
      }
      const Rows rows{
          .count = static_cast<int32_t>(count), .start = start.data(), .seat = seat.data(), .first = first.data()};
      const View<2> out = out_.rows(0, count);
      run(rows, next.data(), chained_.rows(0, count), out);
      for (int64_t i = 0; i < count; i++) copy_row(out, i, chain_, seat[i]), copy_row(out, i, chained_, i);
    }
    draw(requests, active, proposals);
  }
}

}  // namespace deltaring
