#include "spec/step.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/draw.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/scratch.h"
#include "spec/measure_cost.h"
#include "state/materialise.h"

namespace deltaring {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void check_verify(const VerifyOptions& verify, const Drafter* drafter, int64_t T) {
  check(verify.simulate_acceptance_length == 0 ||
            (verify.simulate_acceptance_length >= 1 && verify.simulate_acceptance_length <= static_cast<double>(T)),
        "--simulate-acceptance-length {}: 1 to T = {} tokens a step, 0 = off; {} works",
        verify.simulate_acceptance_length, T, std::min<int64_t>(T, 3));
  if (verify.mode == VerifyMode::dense || (drafter && drafter->has_confidence())) return;
  fail(
      ErrorKind::unsupported,
      "--ragged-verify-mode {} cuts windows by the confidence of a drafter, and {} gives none; static works with every "
      "drafter, cap-accept and compact with one that has it, suffix for example",
      verify.mode == VerifyMode::compact ? "compact" : "cap-accept", drafter ? drafter->name() : "none");
}

}  // namespace

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

ScratchList<SpecStepper> SpecStepper::scratch(const ModelConfig& config, int64_t max_tokens, int64_t seats, int64_t T,
                                              int64_t taps) {
  const int64_t window = seats * T, H = config.hidden_size, vocab = config.vocab_size;
  return {{&SpecStepper::hidden_, max_tokens, H}, {&SpecStepper::taps_, max_tokens, taps * H},
          {&SpecStepper::committed_, window, H},  {&SpecStepper::committed_taps_, window, taps * H},
          {&SpecStepper::logits_, window, vocab}, {&SpecStepper::law_, T, vocab},
          {&SpecStepper::edited_, T, vocab}};
}

SpecStepper::SpecStepper(HybridModel& model, StatePool& pool, Drafter* drafter, int64_t prefill_chunk,
                         int64_t valid_ids, const VerifyOptions& verify)
    : model_(model),
      pool_(pool),
      drafter_(drafter),
      prefill_chunk_(prefill_chunk),
      valid_ids_(valid_ids),
      mode_(verify.mode),
      simulated_length_(verify.simulate_acceptance_length) {
  const int64_t max_tokens = model.decoder().max_tokens(), T = pool.options().ring.T, seats = pool.options().seats,
                window = seats * T;
  check(prefill_chunk >= 64 && prefill_chunk % 64 == 0 && prefill_chunk <= max_tokens,
        "--chunked-prefill-size {}: a multiple of 64, at most {}; 256 works", prefill_chunk, max_tokens);
  check(window <= max_tokens, "a step of {} tokens exceeds the scratch for {}", window, max_tokens);
  check_verify(verify, drafter, T);
  const int64_t taps = drafter ? static_cast<int64_t>(drafter->taps().size()) : 0;
  arena_ = allocate_scratch(*this, scratch(model.config(), max_tokens, seats, T, taps),
                            "hidden states and logits of a step, --chunked-prefill-size");
  reset_stats();
  if (mode_ == VerifyMode::dense && !verify.adaptive) return;
  const StepCost cost = verify.cost ? *verify.cost : measure_cost(model_, pool_, hidden_, logits_);
  if (mode_ != VerifyMode::dense) scheduler_.emplace(cost);
  if (verify.adaptive) window_.emplace(cost, static_cast<int32_t>(T - 1));
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

View<2> SpecStepper::adjusted(Sequence& s, std::span<const int32_t> drafts, View<2> logits) {
  if (s.penalties == Penalties{} && s.bias.empty()) return logits;
  Decoder& decoder = model_.decoder();
  const View<2> out = edited_.rows(0, logits.shape[0]);
  decoder.ops().penalties({.logits = logits,
                           .valid = valid_ids_,
                           .penalties = s.penalties,
                           .counts = s.history.counts(s.tokens, s.prompt),
                           .drafts = drafts,
                           .bias = s.bias,
                           .out = out},
                          decoder.stream());
  return out;
}

Verdict SpecStepper::decide(Sequence& s, const Proposal& proposal, View<2> logits) {
  Decoder& decoder = model_.decoder();
  const auto position = static_cast<int64_t>(s.tokens.size());
  const auto m = static_cast<int32_t>(proposal.tokens.size());
  const View<2> z = adjusted(s, proposal.tokens, logits);
  std::vector<int32_t> best(m + 1);
  const View<2> law = law_.rows(0, m + 1);
  if (s.sampling.temperature == 0) {
    decoder.ops().argmax({.logits = z, .valid = valid_ids_, .out = best.data()}, decoder.stream());
  } else {
    const std::vector<SamplingParams> params(m + 1, s.sampling);
    decoder.ops().probabilities({.logits = z, .valid = valid_ids_, .params = params.data(), .out = law},
                                decoder.stream());
  }
  const int64_t vocab = law.shape[1];
  if (simulated_length_ > 0 && drafter_) {
    const double length = simulated_length_ - 1, whole = std::floor(length);
    const int32_t more = uniform(s.seed, position, Coin::accept) < length - whole;
    const int32_t a = std::min(static_cast<int32_t>(whole) + more, m);
    if (s.sampling.temperature == 0) return {a, best[a]};
    return {a, sample(law.f32(a), vocab, uniform(s.seed, position + a, Coin::residual))};
  }
  if (s.sampling.temperature == 0) return accept_greedy(proposal.tokens, best);
  const bool drawn = !proposal.q.empty();
  const DraftLaw drafted{.q = drawn ? proposal.q.data() : nullptr,
                         .ids = proposal.q_ids.empty() ? nullptr : proposal.q_ids.data(),
                         .width = drawn ? static_cast<int64_t>(proposal.q.size()) / m : 0};
  return accept_sampled(proposal.tokens, drafted, law.f32(), vocab, s.seed, position);
}

// logits [>= emitted, vocab]: row i is the one that emitted token i of the step came from.
void SpecStepper::keep_logprobs(Sequence& s, View<2> logits) {
  s.logprobs.clear();
  if (s.top_logprobs < 0) return;
  const int64_t n = s.emitted, top = std::min<int64_t>(s.top_logprobs, valid_ids_);
  std::vector<float> chosen(n), top_logprobs(n * top);
  std::vector<int32_t> top_ids(n * top);
  Decoder& decoder = model_.decoder();
  decoder.ops().log_probabilities({.logits = logits.rows(0, n),
                                   .valid = valid_ids_,
                                   .ids = s.tokens.data() + s.tokens.size() - n,
                                   .out = chosen.data(),
                                   .top = static_cast<int32_t>(top),
                                   .top_ids = top_ids.data(),
                                   .top_out = top_logprobs.data()},
                                  decoder.stream());
  for (int64_t i = 0; i < n; i++) {
    s.logprobs.push_back({.chosen = chosen[i],
                          .top_ids = {top_ids.begin() + i * top, top_ids.begin() + (i + 1) * top},
                          .top = {top_logprobs.begin() + i * top, top_logprobs.begin() + (i + 1) * top}});
  }
}

void SpecStepper::first_token(Sequence& s, View<2> hidden) {
  logit_rows_ = 1;
  model_.logits(hidden, logits());
  const int32_t token = decide(s, {}, logits()).next;
  if (token < 0) return;
  s.tokens.push_back(token);
  s.emitted = 1;
  keep_logprobs(s, logits());
}

bool SpecStepper::prefill(Sequence& s, const std::function<bool(int64_t)>& on_pass) {
  check(!s.tokens.empty(), "the prompt is empty; at least one token is needed");
  const int64_t end = static_cast<int64_t>(s.tokens.size());
  check_owned(s);
  check(pool_.cursor(s.seat).pos < end, "prefill: all {} tokens are in the state already", end);
  if (drafter_ && pool_.cursor(s.seat).pos == 0) drafter_->reset(s.seat);
  if (scheduler_) scheduler_->forget(s.seat);
  if (window_) window_->forget(s.seat);
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
    if (cut == end) first_token(s, hidden.rows(hidden.shape[0] - 1, 1));
    if (cut == end && s.emitted == 0) return true;
    if (drafter_ && s.max_drafts >= 0) {
      drafter_->extend({.rows = window.rows(),
                        .next = s.tokens.data() + cursor.pos + 1,
                        .hidden = hidden,
                        .taps = taps_.rows(0, window.tokens())});
    }
    pool_.commit(s.seat, window.fold_to[0], window.tokens());
    if (cut < end && on_pass && !on_pass(cut)) {
      s.failed = false;
      return false;
    }
  }
  s.failed = false;
  return true;
}

std::vector<AdaptiveWindow::Ask> SpecStepper::ask(std::span<Sequence* const> sequences) {
  std::vector<AdaptiveWindow::Ask> asks;
  std::vector<int32_t> seats, wanted;
  std::vector<int64_t> waiting;
  for (const Sequence* s : sequences) {
    seats.push_back(s->seat);
    wanted.push_back(std::clamp(s->max_drafts, 0, static_cast<int32_t>(pool_.options().ring.T - 1)));
    asks.push_back({.drafts = wanted.back(), .context = wanted.back() > 0});
    waiting.push_back(drafter_->waiting(s->seat));
  }
  return window_ ? window_->plan(seats, wanted, waiting) : asks;
}

std::vector<DraftRequest> SpecStepper::draft(std::span<Sequence* const> sequences) {
  std::vector<DraftRequest> requests;
  std::vector<int32_t> behind;  // seats whose context is written
  int32_t most = 0;
  int64_t drafting = 0, rows = 0;  // requests that get drafts, context rows
  const std::vector<AdaptiveWindow::Ask> asks = ask(sequences);
  for (size_t b = 0; b < sequences.size(); b++) {
    const Sequence& s = *sequences[b];
    requests.push_back({.seat = s.seat,
                        .drafts = asks[b].drafts,
                        .tokens = s.tokens,
                        .sampling = s.sampling,
                        .seed = step_seed(s.seed, static_cast<int64_t>(s.tokens.size()) - 1)});
    most = std::max(most, asks[b].drafts), drafting += asks[b].drafts > 0;
    if (asks[b].context) behind.push_back(s.seat), rows += drafter_->waiting(s.seat);
  }
  const Clock::time_point begin = Clock::now();
  drafter_->catch_up(behind);
  const Clock::time_point ready = Clock::now();
  for (const int32_t seat : behind) rows -= drafter_->waiting(seat);  // some leave the newest
  if (window_ && rows > 0) window_->writing_took(rows, std::chrono::duration<double>(ready - begin).count());
  if (drafting > 0) drafter_->propose(requests, proposals_);
  if (window_) window_->drafting_took(most, drafting, seconds_since(ready));
  return requests;
}

void SpecStepper::propose(std::span<Sequence* const> sequences) {
  proposals_.assign(sequences.size(), {});
  caps_.clear();
  if (!drafter_) return;
  const std::vector<DraftRequest> asked = draft(sequences);
  for (size_t b = 0; b < asked.size(); b++)
    check_proposal(*drafter_, asked[b], proposals_[b], logits_.shape[1], valid_ids_);
  if (simulated_length_ > 0) simulate(asked);
  if (!scheduler_) return;
  caps_ = scheduler_->plan(asked, proposals_);
  if (mode_ == VerifyMode::cap_accept) return;
  for (size_t b = 0; b < asked.size(); b++) proposals_[b].shorten(static_cast<size_t>(caps_[b]));
  caps_.clear();
}

// Windows are full, whatever the drafter knows: what is missing is made up.
void SpecStepper::simulate(std::span<const DraftRequest> requests) {
  for (size_t b = 0; b < proposals_.size(); b++) {
    Proposal& proposal = proposals_[b];
    const auto m = static_cast<size_t>(requests[b].drafts);
    proposal.q.clear(), proposal.q_ids.clear();
    proposal.tokens.resize(m, requests[b].tokens.back());
    if (drafter_->has_confidence()) proposal.confidence.resize(m, 0);
  }
}

void SpecStepper::accept(std::span<Sequence* const> sequences, const Window& window) {
  accepted_.clear();
  for (size_t b = 0; b < sequences.size(); b++) {
    Sequence& s = *sequences[b];
    const Proposal& proposal = proposals_[b];
    const int32_t length = window.length(b);
    const View<2> rows = logits().rows(window.start[b], length);
    Verdict verdict = decide(s, proposal, rows);
    if (!caps_.empty()) verdict = cap_verdict(verdict, proposal.tokens, caps_[b]);
    s.emitted = verdict.accepted + (verdict.next < 0 ? 0 : 1);
    s.tokens.insert(s.tokens.end(), proposal.tokens.begin(), proposal.tokens.begin() + verdict.accepted);
    if (verdict.next >= 0) s.tokens.push_back(verdict.next);
    keep_logprobs(s, rows);
    accepted_.push_back(verdict.accepted);
    const int32_t drafts = length - 1, decided = caps_.empty() ? drafts : std::min(drafts, caps_[b]);
    if (window_) window_->verified(s.seat, drafts, decided, verdict.accepted);
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
    const bool no_token_behind = s.emitted == accepted_[b], no_more_drafts = window_ && window_->let_go(s.seat);
    if (no_token_behind || no_more_drafts || s.max_drafts < 0) continue;
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
  const Clock::time_point begin = Clock::now();
  verify(sequences);
  if (window_) window_->verifying_took(seconds_since(begin));
}

void SpecStepper::verify(std::span<Sequence* const> sequences) {
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
