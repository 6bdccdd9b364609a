#include "draft/dspark.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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
  if (codes_.shape[0] > 0 && Screen::serves(model.decoder().ops())) markov_screen_.emplace(weights_.markov.w2);
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

// Codes and guesses of the positions from `from` on, one behind the other: the best of the ids to start with.
DSparkDrafter::Guesses DSparkDrafter::guess(const Predictions& p, int64_t from, const std::vector<Contenders>& start,
                                            std::span<const DraftRequest> requests,
                                            std::span<const Proposal> proposals) {
  Decoder& decoder = model_.decoder();
  const int64_t behind = p.first[from], r = weights_.config.markov_rank;
  Guesses out;
  std::vector<int32_t> before(requests.size());  // by request: the token before
  for (int64_t k = from; k < p.positions(); k++) {
    const std::vector<int32_t>& of = p.requests[k];
    std::vector<int32_t> ids;
    for (const int32_t i : of) {
      const bool known = k == from;  // the draft before was decided
      ids.push_back(!known ? before[i] : k == 0 ? requests[i].tokens.back() : proposals[i].tokens.back());
    }
    const auto count = static_cast<int64_t>(of.size());
    const View<2> e = guessed_.rows(p.first[k] - behind, count), codes = codes_.rows(p.first[k] - behind, count);
    decoder.ops().embedding({.ids = ids.data(), .table = weights_.markov.w1, .out = e}, decoder.stream());
    std::copy_n(code(of, hidden(p, k), e).f32(), count * r, codes.f32());
    out.states.emplace_back(state_.f32(), state_.f32() + state_.shape[0] * r);
    for (int64_t i = 0; i < count; i++) {
      const Contenders& first = start[static_cast<size_t>(p.first[k] + i)];
      std::vector<float> logits = first.logits;
      markov_screen_->exact(decoder, codes.rows(i, 1), first.ids, logits, true);
      const auto best = static_cast<size_t>(index_of_largest(decoder, logits));
      out.ids.push_back(first.ids[best]), out.logits.push_back(logits[best]);
      before[of[i]] = target_id(first.ids[best]);
    }
  }
  return out;
}

// Of the rows from `behind` on, whose codes are there, the ids that may be at least as good as the guesses.
std::vector<Ids> DSparkDrafter::contending(int64_t behind, const Guesses& guesses) {
  const auto rows = static_cast<int64_t>(guesses.ids.size());
  if (markov_screen_->estimate(model_.decoder(), codes_.rows(0, rows), 1, valid_ids_,
                               markov_estimates_.rows(0, rows))) {
    const Screen::Part sum[] = {{screen(), behind}, {*markov_screen_, 0}};
    return Screen::contenders(model_.decoder(), sum, guesses.logits);
  }
  Ids all(static_cast<size_t>(valid_ids_));
  std::iota(all.begin(), all.end(), 0);
  return std::vector<Ids>(guesses.ids.size(), all);
}

void DSparkDrafter::choose_screened(const Predictions& p, std::span<const DraftRequest> requests,
                                    std::span<Proposal> proposals) {
  constexpr size_t kStart = 64;  // what is best with the Markov part is nearly always one of them
  Decoder& decoder = model_.decoder();
  std::vector<Contenders> start;
  for (int64_t row = 0; row < p.rows(); row++) {
    const Ids ids = screen().promising(row, kStart);
    start.push_back({.ids = ids, .logits = exact(row, ids)});
  }
  std::fill_n(state_.f32(), state_.shape[0] * state_.shape[1], 0.0f);
  for (int64_t from = 0; from < p.positions();) {
    const int64_t behind = p.first[from];
    const Guesses guesses = guess(p, from, start, requests, proposals);
    const std::vector<Ids> ids = contending(behind, guesses);
    bool right = true;
    int64_t k = from;
    for (; k < p.positions() && right; k++) {
      const std::vector<int32_t>& of = p.requests[k];
      const int64_t first = p.first[k] - behind, count = static_cast<int64_t>(of.size());
      if (weights_.config.confidence_head) estimate(of, hidden(p, k), guessed_.rows(first, count), proposals);
      for (int64_t i = first; i < first + count; i++) {
        const Ids& some = ids[static_cast<size_t>(i)];
        std::vector<float> logits = exact(behind + i, some);
        markov_screen_->exact(decoder, codes_.rows(i, 1), some, logits, true);
        const int32_t id = some[index_of_largest(decoder, logits)];
        right &= id == guesses.ids[static_cast<size_t>(i)];
        proposals[of[i - first]].tokens.push_back(target_id(id));
      }
    }
    const std::vector<float>& state = guesses.states[static_cast<size_t>(k - 1 - from)];
    std::copy(state.begin(), state.end(), state_.f32());
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
