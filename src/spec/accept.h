// Which drafts of a window stay, and the token behind them. Lossless: whatever was drafted, the emitted tokens follow
// the target's law.
#pragma once
#include <cstdint>
#include <span>

namespace deltaring {

// next = -1: the row behind the accepted drafts holds no distribution (its logits were not finite). The request cannot
// go on; nothing else is wrong with the accepted drafts before it.
struct Verdict {
  int32_t accepted;  // a, the drafts that stay: drafts[0, a)
  int32_t next;      // the token at window row a: the next anchor
};

// The laws that drafts were drawn from with Coin::draft. Column c of draft i is the probability of ids[i, c], without
// ids that of c; no other token has any.
struct DraftLaw {
  const float* q = nullptr;      // [m, width], or null: point masses, for drafts that no coin chose
  const int32_t* ids = nullptr;  // [m, width], none twice in a row, those outside [0, vocab) ignored; or null
  int64_t width = 0;             // vocab where ids is null
};

// drafts [m]; target [m+1] argmax of each window row (-1 = none). The longest prefix of drafts that the target would
// have chosen itself. Throws Error when target is not one longer than drafts.
Verdict accept_greedy(std::span<const int32_t> drafts, std::span<const int32_t> target);

// drafts [m]; p [m+1, vocab] the target's law behind each window row; position = absolute position of drafts[0].
//   point masses: the target draws its own token at each position with u(t, residual), as plain decoding does, and a
//     draft stays iff it is that token: with probability p(d), and the output is plain decoding's, token for token.
//   drawn drafts: d at position t stays iff u(t, accept) q(d) < p(d). The first rejected one is replaced by a draw from
//     normalise(max(p - q, 0)) with u(t, residual); where that mass is <= 1e-8, from p.
// When all stay, next is drawn from the last row of p at position + m. A draft outside [0, vocab) or with q(d) <= 0 or
// NaN was not drawn from q: it is rejected and replaced by a draw from p. Other NaN in q count as 0. The same law gives
// the same verdict with and without ids. Throws Error when p is null, vocab < 1 or a law without ids has another width.
Verdict accept_sampled(std::span<const int32_t> drafts, const DraftLaw& law, const float* p, int64_t vocab,
                       uint64_t seed, int64_t position);

// At most `cap` drafts stay; what a longer verdict had behind them, the draft at row cap, is the next anchor. It
// follows the target's law as long as cap depends on nothing drawn at row cap or behind it.
Verdict cap_verdict(Verdict verdict, std::span<const int32_t> drafts, int32_t cap);

}  // namespace deltaring
