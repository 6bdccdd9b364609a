// The checkpoint's own multi-token-prediction head: one full-attention layer fed with the next token's embedding and
// the target's hidden state, chained on its own output for further drafts.
#pragma once
#include <vector>

#include "draft/drafter.h"
#include "model/hybrid.h"

namespace deltaring {

// The pair (hidden of position t, token t+1) is row t of the head and predicts token t+2. Rows of committed positions
// are built from the target's hidden states and stay; chained rows lie at and behind the cursor's pos in the head's KV
// layer and are written over, so drafts leave nothing to undo.
class MtpDrafter final : public Drafter, private SideState {
 public:
  // What a drafter allocates: for prefills of up to max_tokens tokens.
  static ScratchList<MtpDrafter> scratch(const ModelConfig& config, int64_t max_tokens, int64_t seats);

  // Throws Error(unsupported) when the model has no head; ngram works without one. valid_ids: ids at and above are
  // padding rows of the head and never drafted.
  MtpDrafter(HybridModel& model, StatePool& pool, int64_t valid_ids);
  ~MtpDrafter() override;
  MtpDrafter(const MtpDrafter&) = delete;

  const char* name() const override { return "eagle"; }  // SGLang's name for the algorithm
  void extend(const DraftContext& context) override;
  void propose(std::span<const DraftRequest> requests, std::span<Proposal> proposals) override;

 private:
  // Head output of the pairs (hidden, next) at the rows' positions: out [tokens, H], after the head's norm.
  void run(const Rows& rows, const int32_t* next, View<2> hidden, View<2> out);
  // One token for each active request from its last output; appended to its proposal.
  void draw(std::span<const DraftRequest> requests, const std::vector<int32_t>& active, std::span<Proposal> proposals);

  void clear(int32_t seat) override { set_end(seat, -1); }
  void move(int32_t, Cursor, Cursor) override {}  // extend brings the rows
  std::span<std::byte> bytes(int32_t seat) override;
  int64_t end(int32_t seat) const;
  void set_end(int32_t seat, int64_t position);

  HybridModel& model_;
  StatePool& pool_;
  const MtpWeights& weights_;
  const KvPages kv_;
  const int64_t valid_ids_;
  Arena arena_;
  // [seats, H + 2]: output of each seat's newest committed row, and as an int64 the position behind that row. Side
  // state: a seat whose cursor stands elsewhere (it was rewound) has no row to draft from until the next extend.
  View<2> last_;
  View<2> pairs_;         // [max_tokens, 2 H]: normed embedding, normed hidden
  View<2> chain_;         // [seats, H] output of each seat's newest chained row
  View<2> chained_;       // [seats, H] chain_ of the active requests, packed
  View<2> out_;           // [max_tokens, H]
  View<2> logits_, law_;  // [seats, vocab]
};

}  // namespace deltaring
