#include "draft/dspark.h"

#include <algorithm>
#include <cmath>

#include "base/scratch.h"

namespace deltaring {

namespace {

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// Row i of `out` becomes the rows i of the parts, side by side.
void join(View<2> out, std::initializer_list<View<2>> parts) {
  for (int64_t i = 0; i < out.shape[0]; i++) {
    float* at = out.f32(i);
    for (const View<2>& part : parts) at = std::copy_n(part.f32(i), part.shape[1], at);
  }
}

View<2> columns(View<2> x, int64_t count) {
  x.shape[1] = count;
  return x;
}

}  // namespace

ScratchList<DSparkDrafter> DSparkDrafter::scratch(const BlockConfig& c, int64_t seats) {
  const int64_t r = c.markov_rank;
  using Own = DSparkDrafter;
  if (c.kind() != BlockKind::dspark) return {};
  const int64_t rows = c.draft_vocab_size > 0 ? c.draft_vocab_size : c.vocab_size;
  const int64_t screened = r > 0 && Screen::worth(rows, r) ? seats * c.drafts() : 0;
  return {{&Own::embedded_, seats, r},
          {&Own::code_, seats, r},
          {&Own::state_, seats, r},
          {&Own::joint_, seats, 2 * r + c.hidden_size},
          {&Own::projected_, seats, 3 * r},
          {&Own::confident_, seats, 1},
          {&Own::codes_, screened, r},
          {&Own::guessed_, screened, r},
          {&Own::markov_estimates_, screened, rows}};
}

DSparkDrafter::DSparkDrafter(BlockWeights weights, HybridModel& model, StatePool& pool, int64_t valid_ids)
    : BlockDrafter(std::move(weights), model, pool, valid_ids) {
  arena_ = allocate_scratch(*this, scratch(weights_.config, pool.options().seats), "scratch of the Markov head");
  if (codes_.shape[0] > 0 && model.decoder().ops().linear_i8) markov_screen_.emplace(weights_.markov.w2);
}

View<2> DSparkDrafter::code(const std::vector<int32_t>& requests, View<2> hidden, View<2> embedded) {
  const int64_t n = hidden.shape[0], r = embedded.shape[1], H = hidden.shape[1];
  const MarkovHead kind = weights_.config.markov_head;
  if (kind == MarkovHead::vanilla) return embedded;
  const bool rnn = kind == MarkovHead::rnn;
  const View<2> joint = columns(joint_.rows(0, n), rnn ? 2 * r + H : H + r), out = code_.rows(0, n);
  const View<2> projected = columns(projected_.rows(0, n), rnn ? 3 * r : r);
  if (rnn) {
    for (int64_t i = 0; i < n; i++) std::copy_n(state_.f32(requests[i]), r, out.f32(i));
    join(joint, {out, embedded, hidden});
  } else {
    join(joint, {hidden, embedded});
  }
  model_.decoder().linear(joint, weights_.markov.proj, projected);
  const float* bias = weights_.markov.bias.data();
  for (int64_t i = 0; i < n; i++) {
    const float* p = projected.f32(i);
    float* s = state_.f32(requests[i]);
    for (int64_t c = 0; c < r; c++) {
      const float gate = sigmoid(p[c] + bias[c]);
      if (rnn) {
        s[c] = gate * s[c] + (1 - gate) * std::tanh(p[r + c] + bias[r + c]);
        *out.f32(i, c) = std::tanh(p[2 * r + c] + bias[2 * r + c]);
      } else {
        *out.f32(i, c) = gate * *embedded.f32(i, c);
      }
    }
  }
  return out;
}

void DSparkDrafter::estimate(const std::vector<int32_t>& requests, View<2> hidden, View<2> embedded,
                             std::span<Proposal> proposals) {
  const int64_t n = hidden.shape[0], width = weights_.confidence.shape[1];
  const View<2> joint = columns(joint_.rows(0, n), width), out = confident_.rows(0, n);
  weights_.config.confidence_with_markov ? join(joint, {hidden, embedded}) : join(joint, {hidden});
  model_.decoder().linear(joint, weights_.confidence, out);
  for (int64_t i = 0; i < n; i++) {
    proposals[requests[i]].confidence.push_back(sigmoid(*out.f32(i, 0) + weights_.confidence_bias[0]));
  }
}

// The likeliest tokens of a position, by estimates of its logits alone or with the Markov part, whose rows begin at the
// prediction `behind`.
void DSparkDrafter::guess(const Predictions& p, int64_t position, int64_t behind, bool markov,
                          std::vector<int32_t>& tokens) const {
  tokens.clear();
  for (int64_t row = p.first[position]; row < p.first[position + 1]; row++) {
    std::vector<Estimate> sum{estimate_of(row)};
    if (markov) sum.push_back(markov_screen_->row(markov_estimates_, row - behind));
    tokens.push_back(target_id(likeliest(sum, valid_ids_)));
  }
}

void DSparkDrafter::choose_screened(const Predictions& p, std::span<const DraftRequest> requests,
                                    std::span<Proposal> proposals) {
  Decoder& decoder = model_.decoder();
  const int64_t positions = p.positions(), r = weights_.config.markov_rank;
  std::vector<std::vector<int32_t>> tokens(
      static_cast<size_t>(positions));  // [position] of its requests: the best guess
  for (int64_t k = 0; k < positions; k++) guess(p, k, 0, false, tokens[k]);
  std::fill_n(state_.f32(), state_.shape[0] * state_.shape[1], 0.0f);
  for (int64_t from = 0; from < positions;) {
    const int64_t behind = p.first[from];
    std::vector<std::vector<float>> states;        // of an rnn, behind each position
    std::vector<int32_t> before(requests.size());  // by request: the token before
    for (int64_t k = from; k < positions; k++) {
      const std::vector<int32_t>& of = p.requests[k];
      std::vector<int32_t> ids;
      for (const int32_t i : of) {
        const bool known = k == from;  // the draft before was decided
        ids.push_back(!known ? before[i] : k == 0 ? requests[i].tokens.back() : proposals[i].tokens.back());
      }
      const auto count = static_cast<int64_t>(of.size());
      const View<2> e = guessed_.rows(p.first[k] - behind, count), codes = codes_.rows(p.first[k] - behind, count);
      decoder.ops().embedding({.ids = ids.data(), .table = weights_.markov.w1, .out = e}, decoder.stream());
      const View<2> code_rows = code(of, hidden(p, k), e);
      std::copy_n(code_rows.f32(), count * r, codes.f32());
      states.emplace_back(state_.f32(), state_.f32() + state_.shape[0] * r);
      for (size_t i = 0; i < of.size(); i++) before[of[i]] = tokens[k][i];
    }
    const int64_t rows = p.rows() - behind;
    const bool finite = markov_screen_->estimate(decoder, codes_.rows(0, rows), markov_estimates_.rows(0, rows));
    bool right = true;
    int64_t k = from;
    for (; k < positions && right; k++) {
      const std::vector<int32_t>& of = p.requests[k];
      const int64_t first = p.first[k] - behind, count = static_cast<int64_t>(of.size());
      if (weights_.config.confidence_head) estimate(of, hidden(p, k), guessed_.rows(first, count), proposals);
      for (int64_t i = 0; i < count; i++) {
        const int64_t row = p.first[k] + i;
        std::vector<int32_t> ids;
        if (finite) {
          const Estimate sum[] = {estimate_of(row), markov_screen_->row(markov_estimates_, first + i)};
          ids = contenders(sum, valid_ids_, 1);
        } else {
          ids = {0};  // of logits that hold no number
        }
        std::vector<float> logits = exact(row, ids);
        markov_screen_->exact(decoder, codes_.rows(first + i, 1), ids, logits, true);
        const int32_t token = target_id(ids[index_of_largest(decoder, logits)]);
        right &= token == tokens[k][i];
        tokens[k][i] = token;
        proposals[of[i]].tokens.push_back(token);
      }
    }
    if (k < positions) {
      std::copy(states[k - 1 - from].begin(), states[k - 1 - from].end(), state_.f32());
      for (int64_t later = k; later < positions && finite; later++) guess(p, later, behind, true, tokens[later]);
    }
    from = k;
  }
}

void DSparkDrafter::choose(const Predictions& p, std::span<const DraftRequest> requests,
                           std::span<Proposal> proposals) {
  Decoder& decoder = model_.decoder();
  const bool markov = weights_.config.markov_rank > 0;
  if (markov && screened() && markov_screen_) return choose_screened(p, requests, proposals);
  if (markov) std::fill_n(state_.f32(), state_.shape[0] * state_.shape[1], 0.0f);
  for (int64_t k = 0; k < p.positions(); k++) {
    const View<2> h = hidden(p, k), e = embedded_.rows(0, h.shape[0]);
    if (markov) {
      const std::vector<int32_t> before = predecessors(p, k, requests, proposals);
      decoder.ops().embedding({.ids = before.data(), .table = weights_.markov.w1, .out = e}, decoder.stream());
    }
    if (weights_.config.confidence_head) estimate(p.requests[k], h, e, proposals);
    if (markov) decoder.linear(code(p.requests[k], h, e), weights_.markov.w2, logits(p, k), true);
    draw(p, k, requests, proposals);
  }
}

}  // namespace deltaring
