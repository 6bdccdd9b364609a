#include "draft/mtp.h"

#include <algorithm>
#include <cstring>
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

// The columns that both have.
void copy_row(const View<2>& from, int64_t i, const View<2>& to, int64_t j) {
  std::copy_n(from.f32(i), std::min(from.shape[1], to.shape[1]), to.f32(j));
}

}  // namespace

ScratchList<MtpDrafter> MtpDrafter::scratch(const ModelConfig& config, int64_t max_tokens, int64_t seats) {
  const int64_t H = config.hidden_size, vocab = config.vocab_size;
  return {{&MtpDrafter::last_, seats, H + 2}, {&MtpDrafter::chain_, seats, H},
          {&MtpDrafter::chained_, seats, H},  {&MtpDrafter::pairs_, max_tokens, 2 * H},
          {&MtpDrafter::out_, max_tokens, H}, {&MtpDrafter::logits_, seats, vocab},
          {&MtpDrafter::law_, seats, vocab}};
}

MtpDrafter::MtpDrafter(HybridModel& model, StatePool& pool, int64_t valid_ids)
    : model_(model),
      pool_(pool),
      weights_(head_of(model)),
      kv_(pool.kv(pool.shape().kv_layers - 1)),
      valid_ids_(valid_ids) {
  arena_ = allocate_scratch(*this, scratch(model.config(), model.decoder().max_tokens(), pool.options().seats),
                            "scratch of the MTP head, --chunked-prefill-size");
  pool_.attach(*this);
}

MtpDrafter::~MtpDrafter() { pool_.detach(*this); }

std::span<std::byte> MtpDrafter::bytes(int32_t seat) {
  return std::as_writable_bytes(std::span(last_.f32(seat), static_cast<size_t>(last_.shape[1])));
}

int64_t MtpDrafter::end(int32_t seat) const {
  int64_t position;
  std::memcpy(&position, last_.f32(seat, last_.shape[1] - 2), sizeof position);
  return position;
}

void MtpDrafter::set_end(int32_t seat, int64_t position) {
  std::memcpy(last_.f32(seat, last_.shape[1] - 2), &position, sizeof position);
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
    if (context.rows.seat[b] < 0 || context.rows.length(b) == 0) continue;
    copy_row(out, context.rows.start[b + 1] - 1, last_, context.rows.seat[b]);
    set_end(context.rows.seat[b], context.rows.first[b] + context.rows.length(b));
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
  std::erase_if(active, [&](int32_t i) {
    const DraftRequest& r = requests[i];
    return r.seat < 0 || end(r.seat) != static_cast<int64_t>(r.tokens.size()) - 1;
  });
  for (int32_t drafted = 0;; drafted++) {
    std::erase_if(active, [&](int32_t i) { return requests[i].drafts <= drafted; });
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
