#include "spec/accept.h"

#include <vector>

#include "base/draw.h"
#include "base/error.h"
#include "base/rng.h"

namespace deltaring {

namespace {

constexpr double kLeastResidual = 1e-8;  // below this p - q is the rounding of p and q, not a law

// The law of one draft.
struct Row {
  const float* q;
  const int32_t* ids;
  int64_t width;

  int64_t id(int64_t c) const { return ids ? ids[c] : c; }
  double of(int32_t token) const {
    for (int64_t c = ids ? 0 : token; c < width; c++)
      if (id(c) == token) return q[c];
    return 0;
  }
};

// A draw from what p [vocab] has over the law.
int32_t draw_residual(const float* p, const Row& law, int64_t vocab, double u) {
  std::vector<double> rest(p, p + vocab);
  for (int64_t c = 0; c < law.width; c++) {
    const int64_t id = law.id(c);
    if (id >= 0 && id < vocab && law.q[c] > 0) rest[id] -= double{law.q[c]};
  }
  const int32_t id = draw(vocab, u, kLeastResidual, [&](int64_t i) { return rest[i]; });
  return id >= 0 ? id : sample(p, vocab, u);
}

}  // namespace

Verdict accept_greedy(std::span<const int32_t> drafts, std::span<const int32_t> target) {
  check(target.size() == drafts.size() + 1, "accept_greedy: target has {} rows for {} drafts; [m+1] = {} is needed",
        target.size(), drafts.size(), drafts.size() + 1);
  size_t a = 0;
  while (a < drafts.size() && drafts[a] >= 0 && drafts[a] == target[a]) a++;
  return {static_cast<int32_t>(a), target[a]};
}

Verdict accept_sampled(std::span<const int32_t> drafts, const DraftLaw& law, const float* p, int64_t vocab,
                       uint64_t seed, int64_t position) {
  check(p != nullptr && vocab > 0, "accept_sampled: p [m+1, vocab] is needed with vocab > 0; vocab is {}", vocab);
  check(!law.q || law.ids || law.width == vocab, "accept_sampled: a law [m, {}] without ids; [m, vocab = {}] works",
        law.width, vocab);
  const auto m = static_cast<int32_t>(drafts.size());
  for (int32_t i = 0; i < m; i++, p += vocab) {
    const int32_t d = drafts[i];
    const double u = uniform(seed, position + i, Coin::residual);
    if (!law.q) {
      const int32_t own = sample(p, vocab, u);
      if (own == d) continue;
      return {i, own};
    }
    const Row row{law.q + i * law.width, law.ids ? law.ids + i * law.width : nullptr, law.width};
    const double q = d >= 0 && d < vocab ? row.of(d) : 0;
    const bool drawn = q > 0;
    if (drawn && uniform(seed, position + i, Coin::accept) * q < double{p[d]}) continue;
    return {i, drawn ? draw_residual(p, row, vocab, u) : sample(p, vocab, u)};
  }
  return {m, sample(p, vocab, uniform(seed, position + m, Coin::residual))};
}

Verdict cap_verdict(Verdict verdict, std::span<const int32_t> drafts, int32_t cap) {
  if (verdict.accepted <= cap) return verdict;
  return {.accepted = cap, .next = drafts[cap]};
}

}  // namespace deltaring
