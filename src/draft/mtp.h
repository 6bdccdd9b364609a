// The checkpoint's own multi-token-prediction head: one full-attention layer fed with the next token's embedding and
// the target's hidden state, chained on its own output for further drafts.
#pragma once
#include <optional>
#include <vector>

#include "draft/drafter.h"
#include "draft/pending_rows.h"
#include "draft/screen.h"
#include "model/hybrid.h"

namespace deltaring {

// The pair (hidden of position t, token t+1) is row t of the head and predicts token t+2. Of rows of committed
// positions only keys and values stay, made when drafts are wanted; the newest goes through the whole head then, and
// further drafts are chained on its output. Chained rows lie at and behind the cursor's pos in the head's KV layer and
// are written over, so drafts leave nothing to undo.
class MtpDrafter final : public Drafter {
 public:
  // What a drafter allocates: for passes of up to max_tokens tokens.
  static int64_t scratch_bytes(const ModelConfig& config, int64_t max_tokens, int64_t seats);

  // Throws Error(unsupported) when the model has no head; ngram works without one. valid_ids: ids at and above are
  // padding rows of the head and never drafted.
  MtpDrafter(HybridModel& model, StatePool& pool, int64_t valid_ids);
  MtpDrafter(const MtpDrafter&) = delete;

  const char* name() const override { return "eagle"; }  // SGLang's name for the algorithm
  void extend(const DraftContext& context) override;
  int64_t waiting(int32_t seat) const override { return static_cast<int64_t>(pending_.waiting(seat).size()); }
  void catch_up(std::span<const int32_t> seats) override;
  void propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) override;

 private:
  using Row = PendingRows::Row;

  static ScratchList<MtpDrafter> scratch(const ModelConfig& config, int64_t max_tokens, int64_t seats);
  // What the head's layer takes: both sides of the pairs normed and joined. [tokens, H], in out_.
  View<2> join(std::span<const Row> rows);
  void write(std::span<const Row> list);  // keys and values alone
  void run(std::span<const Row> list);    // at most one row a seat through the whole head, into chain_
  // One token for each active request from its last output; appended to its proposal.
  void draw(std::span<const DraftRequest> requests, const std::vector<int32_t>& active, std::span<Proposal> proposals);

  HybridModel& model_;
  const MtpWeights& weights_;
  const KvPages kv_;
  const int64_t valid_ids_;
  PendingRows pending_;
  std::optional<Screen> screen_;  // of the target's head, for requests that do not sample
  Arena arena_;
  View<2> pairs_;   // [max_tokens, 2 H]: normed embedding, normed hidden
  View<2> out_;     // [max_tokens, H]
  View<2> chain_;   // [seats, H] output of the active requests' newest rows
  View<2> logits_;  // [seats, vocab]
  View<2> law_;     // [1, vocab]
};

}  // namespace deltaring
