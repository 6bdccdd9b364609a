#include "spec/step.h"

#include <algorithm>

#include "base/draw.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/scratch.h"
#include "spec/accept.h"
#include "state/materialise.h"

namespace deltaring {

struct SpecStepper::Window {
  std::vector<int32_t> start{0}, seat;
  std::vector<int64_t> first, folded, fold_to;
  std::vector<int32_t> ids;

  void add(int32_t at, Cursor cursor, int64_t destination) {
    seat.push_back(at);
    first.push_back(cursor.pos);
    folded.push_back(cursor.folded);
    fold_to.push_back(destination);
  }
  void close() { start.push_back(static_cast<int32_t>(ids.size())); }
  int32_t tokens() const { return start.back(); }
  int32_t length(size_t b) const { return start[b + 1] - start[b]; }
  Rows rows() const {
    return {.count = static_cast<int32_t>(seat.size()),
            .start = start.data(),
            .seat = seat.data(),
            .first = first.data(),
            .folded = folded.data(),
            .fold_to = fold_to.data()};
  }
};

ScratchList<SpecStepper> SpecStepper::scratch(const ModelConfig& config, int64_t max_tokens, int64_t window,
                                              int64_t taps) {
  const int64_t H = config.hidden_size, vocab = config.vocab_size;
  return {{&SpecStepper::hidden_, max_tokens, H}, {&SpecStepper::taps_, max_tokens, taps * H},
          {&SpecStepper::committed_, window, H},  {&SpecStepper::committed_taps_, window, taps * H},
          {&SpecStepper::logits_, window, vocab}, {&SpecStepper::law_, window, vocab}};
}

SpecStepper::SpecStepper(HybridModel& model, StatePool& pool, Drafter* drafter, int64_t prefill_chunk,
                         int64_t valid_ids)
    : model_(model), pool_(pool), drafter_(drafter), prefill_chunk_(prefill_chunk), valid_ids_(valid_ids) {
  const int64_t max_tokens = model.decoder().max_tokens(), window = pool.options().seats * pool.options().ring.T;
  check(prefill_chunk >= 64 && prefill_chunk % 64 == 0 && prefill_chunk <= max_tokens,
        "--chunked-prefill-size {}: a multiple of 64, at most {}; 256 works", prefill_chunk, max_tokens);
  check(window <= max_tokens, "a step of {} tokens exceeds the scratch for {}", window, max_tokens);
  const int64_t taps = drafter ? static_cast<int64_t>(drafter->taps().size()) : 0;
  arena_ = allocate_scratch(*this, scratch(model.config(), max_tokens, window, taps),
                            "hidden states and logits of a step, --chunked-prefill-size");
  reset_stats();
}

void SpecStepper::reset_stats() {
  stats_ = {};
  stats_.drafted_at.resize(pool_.options().ring.T - 1);
  stats_.accepted_at.resize(pool_.options().ring.T - 1);
}

// Before anything is written: a cached seat is read-only.
void SpecStepper::check_owned(const Sequence& s) const {
  check(pool_.state_of(s.seat) == SeatState::owned, "seat {} is not owned; StatePool::own makes it so", s.seat);
}

int64_t SpecStepper::due(Cursor cursor) const {
  if (pool_.options().rollback == StateRollback::snapshot) return cursor.pos;  // the pool moves it along
  return plan_fold(cursor, pool_.options().ring.F, pool_.options().ring.policy);
}

Taps SpecStepper::taps(int64_t tokens) const {
  return {.layers = drafter_ ? drafter_->taps() : std::span<const int64_t>(), .out = taps_.rows(0, tokens)};
}

int32_t SpecStepper::first_token(const Sequence& s, View<2> hidden) {
  logit_rows_ = 1;
  model_.logits(hidden, logits());
  Decoder& decoder = model_.decoder();
  int32_t token = -1;
  if (s.sampling.temperature == 0) {
    decoder.ops().argmax({.logits = logits(), .valid = valid_ids_, .out = &token}, decoder.stream());
    return token;
  }
  const View<2> law = law_.rows(0, 1);
  decoder.ops().probabilities({.logits = logits(), .valid = valid_ids_, .params = &s.sampling, .out = law},
                              decoder.stream());
  const int64_t position = static_cast<int64_t>(s.tokens.size());
  return sample(law.f32(), law.shape[1], uniform(s.seed, position, Coin::residual));
}

void SpecStepper::prefill(Sequence& s) {
  check(!s.tokens.empty(), "the prompt is empty; at least one token is needed");
  const int64_t end = static_cast<int64_t>(s.tokens.size());
  check_owned(s);
  check(pool_.cursor(s.seat).pos < end, "prefill: all {} tokens are in the state already", end);
  if (drafter_ && pool_.cursor(s.seat).pos == 0) drafter_->reset(s.seat);
  s.emitted = 0;
  s.failed = true;  // until the last chunk is through
  while (pool_.cursor(s.seat).pos < end) {
    const Cursor cursor = pool_.cursor(s.seat);
    // Cuts stand on absolute multiples of the chunk.
    const int64_t cut = std::min(end, (cursor.pos / prefill_chunk_ + 1) * prefill_chunk_);
    Window window;
    window.add(s.seat, cursor, due({.folded = cursor.folded, .pos = cut}));
    window.ids.assign(s.tokens.begin() + cursor.pos, s.tokens.begin() + cut);
    window.close();
    const View<2> hidden = hidden_.rows(0, window.tokens());
    model_.forward(window.rows(), window.ids.data(), true, pool_, hidden, taps(window.tokens()));
    const int32_t token = cut == end ? first_token(s, hidden.rows(hidden.shape[0] - 1, 1)) : -1;
    if (cut == end && token < 0) return;
    if (cut == end) s.tokens.push_back(token), s.emitted = 1;
    if (drafter_) {
      drafter_->extend({.rows = window.rows(),
                        .next = s.tokens.data() + cursor.pos + 1,
                        .hidden = hidden,
                        .taps = taps_.rows(0, window.tokens())});
    }
    pool_.commit(s.seat, window.fold_to[0], window.tokens());
  }
  s.failed = false;
}

void SpecStepper::propose(std::span<Sequence* const> sequences) {
  proposals_.assign(sequences.size(), {});
  if (!drafter_) return;
  std::vector<DraftRequest> requests;
  const int32_t most = static_cast<int32_t>(pool_.options().ring.T - 1);
  for (const Sequence* s : sequences) {
    requests.push_back({.seat = s->seat,
                        .drafts = std::clamp(s->max_drafts, 0, most),
                        .tokens = s->tokens,
                        .sampling = s->sampling,
                        .seed = s->seed});
  }
  drafter_->propose(requests, proposals_);
  for (size_t b = 0; b < proposals_.size(); b++) {
    const auto& [tokens, q, confidence] = proposals_[b];
    check(tokens.size() <= static_cast<size_t>(requests[b].drafts),
          "drafter {} gave {} drafts, at most {} were asked for", drafter_->name(), tokens.size(), requests[b].drafts);
    check(q.empty() || q.size() == tokens.size() * static_cast<size_t>(law_.shape[1]),
          "drafter {} gave {} probabilities for {} drafts, want [m, vocab] = {} or none", drafter_->name(), q.size(),
          tokens.size(), tokens.size() * static_cast<size_t>(law_.shape[1]));
    check(confidence.empty() || confidence.size() == tokens.size(),
          "drafter {} gave {} confidences for {} drafts, want one each or none", drafter_->name(), confidence.size(),
          tokens.size());
    for (const int32_t id : tokens) {
      check(id >= 0 && id < valid_ids_, "drafter {} drafted token {}, ids are [0, {})", drafter_->name(), id,
            valid_ids_);
    }
  }
}

void SpecStepper::accept(std::span<Sequence* const> sequences, const Window& window) {
  Decoder& decoder = model_.decoder();
  const int64_t vocab = logits_.shape[1];
  std::vector<int32_t> best(window.tokens());
  decoder.ops().argmax({.logits = logits(), .valid = valid_ids_, .out = best.data()}, decoder.stream());
  accepted_.clear();
  for (size_t b = 0; b < sequences.size(); b++) {
    Sequence& s = *sequences[b];
    const Proposal& proposal = proposals_[b];
    const int32_t begin = window.start[b], length = window.length(b);
    Verdict verdict;
    if (s.sampling.temperature == 0) {
      verdict = accept_greedy(proposal.tokens, std::span(best).subspan(begin, length));
    } else {
      const View<2> law = law_.rows(begin, length);
      const std::vector<SamplingParams> params(length, s.sampling);
      decoder.ops().probabilities(
          {.logits = logits().rows(begin, length), .valid = valid_ids_, .params = params.data(), .out = law},
          decoder.stream());
      verdict = accept_sampled(proposal.tokens, proposal.q.empty() ? nullptr : proposal.q.data(), law.f32(), vocab,
                               s.seed, static_cast<int64_t>(s.tokens.size()));
    }
    s.emitted = verdict.accepted + (verdict.next < 0 ? 0 : 1);
    s.tokens.insert(s.tokens.end(), proposal.tokens.begin(), proposal.tokens.begin() + verdict.accepted);
    if (verdict.next >= 0) s.tokens.push_back(verdict.next);
    accepted_.push_back(verdict.accepted);
    stats_.steps++;
    stats_.emitted += s.emitted;
    stats_.drafted += length - 1;
    stats_.accepted += verdict.accepted;
    for (int32_t i = 0; i < length - 1; i++) stats_.drafted_at[i]++, stats_.accepted_at[i] += i < verdict.accepted;
  }
}

void SpecStepper::commit(const Window& window) {
  std::vector<int32_t> kept;
  for (const int32_t accepted : accepted_) kept.push_back(accepted + 1);
  if (pool_.options().rollback == StateRollback::snapshot) model_.commit_snapshots(window.rows(), kept.data(), pool_);
  for (size_t b = 0; b < kept.size(); b++) {
    stats_.folds += window.fold_to[b] > window.folded[b];
    pool_.commit(window.seat[b], window.fold_to[b], kept[b]);
  }
  if (pool_.options().ring.policy == FoldPolicy::every)
    stats_.folds += materialise(pool_, window.seat, model_.decoder().ops(), model_.decoder().stream());
}

void SpecStepper::extend_drafter(std::span<Sequence* const> sequences, const Window& window) {
  Window kept;  // its ids are the tokens behind the committed ones
  for (size_t b = 0; b < sequences.size(); b++) {
    const Sequence& s = *sequences[b];
    if (s.emitted == accepted_[b]) continue;  // no token stands behind its last row
    kept.add(s.seat, {.folded = 0, .pos = window.first[b]}, 0);
    for (int32_t i = 0; i <= accepted_[b]; i++) {
      std::copy_n(hidden_.f32(window.start[b] + i), hidden_.shape[1], committed_.f32(kept.ids.size()));
      std::copy_n(taps_.f32(window.start[b] + i), taps_.shape[1], committed_taps_.f32(kept.ids.size()));
      kept.ids.push_back(s.tokens[window.first[b] + i + 1]);
    }
    kept.close();
  }
  if (kept.ids.empty()) return;
  drafter_->extend({.rows = kept.rows(),
                    .next = kept.ids.data(),
                    .hidden = committed_.rows(0, kept.tokens()),
                    .taps = committed_taps_.rows(0, kept.tokens())});
}

void SpecStepper::step(std::span<Sequence* const> sequences) {
  if (sequences.empty()) return;
  for (const Sequence* s : sequences) check_owned(*s);
  propose(sequences);
  Window window;
  for (size_t b = 0; b < sequences.size(); b++) {
    const Sequence& s = *sequences[b];
    const Cursor cursor = pool_.cursor(s.seat);
    check(!s.failed && cursor.pos + 1 == static_cast<int64_t>(s.tokens.size()),
          "seat {}: the state holds {} tokens, the sequence {} and an anchor", s.seat, cursor.pos, s.tokens.size() - 1);
    window.add(s.seat, cursor, due(cursor));
    window.ids.push_back(s.tokens.back());
    window.ids.insert(window.ids.end(), proposals_[b].tokens.begin(), proposals_[b].tokens.end());
    window.close();
  }
  for (Sequence* s : sequences) s->failed = true;  // unless the step comes through
  logit_rows_ = window.tokens();
  const View<2> hidden = hidden_.rows(0, window.tokens());
  model_.forward(window.rows(), window.ids.data(), false, pool_, hidden, taps(window.tokens()));
  model_.logits(hidden, logits());
  accept(sequences, window);
  commit(window);
  if (drafter_) extend_drafter(sequences, window);
  for (size_t b = 0; b < sequences.size(); b++) sequences[b]->failed = sequences[b]->emitted == accepted_[b];
}

}  // namespace deltaring
