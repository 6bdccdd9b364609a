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

// drafts [m]; target [m+1] argmax of each window row (-1 = none). The longest prefix of drafts that the target would
// have chosen itself. Throws Error when target is not one longer than drafts.
Verdict accept_greedy(std::span<const int32_t> drafts, std::span<const int32_t> target);

// drafts [m]; q [m, vocab] the law each draft was drawn from with Coin::draft, or null: point masses, for drafts that
// no coin chose; p [m+1, vocab] the target's law behind each window row; position = absolute position of drafts[0].
//   point masses: the target draws its own token at each position with u(t, residual), as plain decoding does, and a
//     draft stays iff it is that token: with probability p(d), and the output is plain decoding's, token for token.
//   drawn drafts: d at position t stays iff u(t, accept) q(d) < p(d). The first rejected one is replaced by a draw from
//     normalise(max(p - q, 0)) with u(t, residual); where that mass is <= 1e-8, from p.
// When all stay, next is drawn from the last row of p at position + m. A draft outside [0, vocab) or with q(d) <= 0 or
// NaN was not drawn from q: it is rejected and replaced by a draw from p. Other NaN in q count as 0. Throws Error when
// p is null or vocab < 1.
Verdict accept_sampled(std::span<const int32_t> drafts, const float* q, const float* p, int64_t vocab, uint64_t seed,
                       int64_t position);

}  // namespace deltaring
