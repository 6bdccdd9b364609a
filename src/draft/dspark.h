// DSpark: a Markov head adds what the token before says to each row's logits, one draft after the other, and a
// confidence head says how likely a draft is to stay.
#pragma once
#include "draft/block_drafter.h"

namespace deltaring {

// With e = W1[token before], h = the row's hidden and z = its logits:
//   vanilla: z += W2 e;   gated: z += W2 (sigmoid(G [h; e]) * e);
//   rnn: [g; c; o] = J [s; e; h], s <- sigmoid(g) s + (1 - sigmoid(g)) tanh(c), z += W2 tanh(o), with s = 0 at first.
// confidence = sigmoid(w [h; e] + b), or of h alone: a function of the drafts before it.
class DSparkDrafter final : public BlockDrafter {
 public:
  static ScratchList<DSparkDrafter> scratch(const BlockConfig& config, int64_t seats);
  DSparkDrafter(BlockWeights weights, HybridModel& model, StatePool& pool, int64_t valid_ids);

  bool has_confidence() const override { return config().confidence_head; }

 private:
  void choose(const Predictions& predictions, std::span<const DraftRequest> requests,
              std::span<Proposal> proposals) override;
  // The same drafts with screens of the head and of W2: all positions go through W2 at once, behind guesses of the
  // drafts before them, and again from the first wrong guess on.
  void choose_screened(const Predictions& predictions, std::span<const DraftRequest> requests,
                       std::span<Proposal> proposals);
  struct Guesses {
    std::vector<int32_t> ids;                // of the head, [rows]
    std::vector<float> logits;               // [rows] theirs, behind the guesses before them
    std::vector<std::vector<float>> states;  // [positions] of an rnn, behind each
  };
  Guesses guess(const Predictions& predictions, int64_t from, const std::vector<Contenders>& start,
                std::span<const DraftRequest> requests, std::span<const Proposal> proposals);
  std::vector<Ids> contending(int64_t behind, const Guesses& guesses);
  // What W2 takes for the rows of a position, in code_ or embedded_.
  View<2> code(const std::vector<int32_t>& requests, View<2> hidden, View<2> embedded);
  void estimate(const std::vector<int32_t>& requests, View<2> hidden, View<2> embedded, std::span<Proposal> proposals);

  Arena arena_;
  View<2> embedded_, code_;        // [seats, r]
  View<2> state_;                  // [seats, r] s of each request of the running proposal
  View<2> joint_;                  // [seats, 2 r + H]
  View<2> projected_, confident_;  // [seats, 3 r], [seats, 1]
  std::optional<Screen> markov_screen_;
  View<2> codes_, guessed_;   // [seats drafts, r] of all positions: what W2 takes, embedding of the token before
  View<2> markov_estimates_;  // [seats drafts, vocabulary of the head]
};

}  // namespace deltaring
