// The speculative step: draft, verify, accept, commit. Plain decoding is the step without drafts, through the same
// code.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "draft/drafter.h"
#include "model/hybrid.h"
#include "ops/sample.h"
#include "spec/accept.h"
#include "spec/adaptive.h"
#include "spec/budget.h"
#include "spec/history.h"

namespace deltaring {

// The target's log-probability of an emitted token, and of the likeliest ids at its place.
struct TokenLogprobs {
  float chosen;
  std::vector<int32_t> top_ids;
  std::vector<float> top;
};

// One request between steps. Invariant behind prefill: cursor.pos + 1 == tokens.size(), the last token is the anchor.
struct Sequence {
  int32_t seat = -1;
  std::vector<int32_t> tokens;  // prompt and output
  SamplingParams sampling;
  uint64_t seed = 0;
  int32_t max_drafts = 0;  // drafts wanted in the next step; more than T-1 are not asked for. Below 0: in none, so that
                           // no drafter need follow; one that keeps a context drafts no more for this sequence

  int64_t prompt = 0;  // the first so many tokens are the prompt: the rest is output to the penalties
  Penalties penalties;
  std::vector<TokenBias> bias;
  int32_t top_logprobs = -1;  // n >= 0: log-probabilities of every emitted token and of the n likeliest ids
  TokenHistory history;       // of `tokens`, for the penalties

  int32_t emitted = 0;  // tokens the last prefill or step appended to `tokens`
  bool failed = false;  // it cannot go on and its seat must be freed: the logits behind `tokens` were not finite, or an
                        // op threw in the middle of a step
  std::vector<TokenLogprobs> logprobs;  // [emitted] where asked for: before penalties and filters, at temperature 1
};

// What becomes of drafts that their drafter has little confidence in.
enum class VerifyMode : uint8_t {
  dense,       // all are verified
  cap_accept,  // all are verified, but no more accepted than the scheduler let through
  compact,     // only those that the scheduler lets through are verified: rows of different length, packed
};

struct VerifyOptions {
  VerifyMode mode = VerifyMode::dense;
  bool adaptive = false;                  // ask for as many drafts as have paid so far
  std::optional<StepCost> cost;           // of both; measured where it is not given
  double simulate_acceptance_length = 0;  // for benches: every step emits that many tokens on average, right or wrong
};

// Counts of steps, not of time.
struct SpecStats {
  int64_t steps = 0;    // verify rows with at least one token: one a sequence and step
  int64_t emitted = 0;  // tokens they emitted; the one from prefill is not among them
  int64_t drafted = 0;
  int64_t accepted = 0;
  int64_t folds = 0;                             // steps of a sequence that moved its checkpoint
  std::vector<int64_t> drafted_at, accepted_at;  // [T-1] by draft position

  double acceptance_length() const { return steps ? static_cast<double>(emitted) / static_cast<double>(steps) : 0; }
};

class SpecStepper {
 public:
  // What a stepper allocates: for prefills of up to max_tokens tokens, for steps of up to seats * T, for a drafter with
  // so many taps.
  static ScratchList<SpecStepper> scratch(const ModelConfig& config, int64_t max_tokens, int64_t seats, int64_t T,
                                          int64_t taps);

  // drafter may be null: plain decoding. prefill_chunk: tokens of a prefill call, a multiple of 64 (and so of F), at
  // most the model's max_tokens. valid_ids: ids at and above are padding rows of the head. All referees outlive the
  // stepper. Throws Error(unsupported) for a mode that the drafter gives no confidence for. A cost is measured with
  // free seats: some steps of all sizes.
  SpecStepper(HybridModel& model, StatePool& pool, Drafter* drafter, int64_t prefill_chunk, int64_t valid_ids,
              const VerifyOptions& verify = {});

  // Runs the prompt (sequence.tokens, not empty) through the model from cursor.pos on and appends the first token. The
  // checkpoint is left at the grid floor of the prompt's end, the rest as records. Pages must have been reserved.
  // on_pass is told the tokens that are through behind every pass but the last; where it says false, so does prefill,
  // which appended nothing then and goes on from there when it is called again.
  bool prefill(Sequence& sequence, const std::function<bool(int64_t)>& on_pass = {});

  // One verify step for rows that all have a seat; each emits 1..T tokens. Pages for pos + T must have been reserved.
  void step(std::span<Sequence* const> sequences);

  const SpecStats& stats() const { return stats_; }
  void reset_stats();

  // Logits of the last step's or prefill's rows, [tokens, vocab], row order as verified; valid until the next call.
  View<2> logits() const { return logits_.rows(0, logit_rows_); }
  // Window rows that row b of the last step verified, anchor included.
  int64_t rows_of(size_t b) const { return static_cast<int64_t>(proposals_[b].tokens.size()) + 1; }

 private:
  struct Window;  // the packed rows of one step

  void check_owned(const Sequence& sequence) const;
  std::vector<AdaptiveWindow::Ask> ask(std::span<Sequence* const> sequences);  // how many drafts, of whom
  std::vector<DraftRequest> draft(std::span<Sequence* const> sequences);       // what was asked; fills proposals_
  int64_t due(Cursor cursor) const;  // plan_fold of the pool's ring; pos under snapshot
  void propose(std::span<Sequence* const> sequences);
  void simulate(std::span<const DraftRequest> requests);
  // What the drafts of a window come to; logits [m+1, vocab] of its rows.
  Verdict decide(Sequence& sequence, const Proposal& proposal, View<2> logits);
  View<2> adjusted(Sequence& sequence, std::span<const int32_t> drafts, View<2> logits);
  void keep_logprobs(Sequence& sequence, View<2> logits);
  void accept(std::span<Sequence* const> sequences, const Window& window);
  void commit(const Window& window);
  void verify(std::span<Sequence* const> sequences);  // the step behind propose
  void extend_drafter(std::span<Sequence* const> sequences, const Window& window);
  void first_token(Sequence& sequence, View<2> hidden);
  Taps taps(int64_t tokens) const;

  HybridModel& model_;
  StatePool& pool_;
  Drafter* drafter_;
  const int64_t prefill_chunk_, valid_ids_;
  const VerifyMode mode_;
  const double simulated_length_;
  std::optional<VerifyScheduler> scheduler_;
  std::optional<AdaptiveWindow> window_;
  Arena arena_;
  View<2> hidden_;                      // [max_tokens, H]
  View<2> taps_;                        // [max_tokens, n H]
  View<2> committed_, committed_taps_;  // [seats * T, ..] rows of hidden_ and taps_ that stay, packed
  View<2> logits_;                      // [seats * T, vocab]
  View<2> law_, edited_;                // [T, vocab] of one request
  int64_t logit_rows_ = 0;
  std::vector<Proposal> proposals_;
  std::vector<int32_t> caps_;      // [rows] under cap_accept: the most drafts that may stay
  std::vector<int32_t> accepted_;  // [rows] a of the running step
  SpecStats stats_;
};

}  // namespace deltaring
