#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/sample.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/contrib/algo/find-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The largest of x[0, count) that is not NaN, -inf when there is none; has_nan is set when one is.
float Largest(const float* x, int64_t count, bool& has_nan) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto best = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto ordinary = hn::Eq(best, best);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    best = hn::IfThenElse(hn::Gt(v, best), v, best);
    ordinary = hn::And(ordinary, hn::Eq(v, v));
  }
  float largest = hn::GetLane(hn::MaxOfLanes(d, best));
  has_nan = !hn::AllTrue(d, ordinary);
  for (; i < count; i++) {
    if (x[i] > largest) largest = x[i];
    has_nan |= x[i] != x[i];
  }
  return largest;
}

// Lowest index in x[0, count) of a value, or -1.
int64_t IndexOf(const float* x, int64_t count, float value) {
  const int64_t i = static_cast<int64_t>(hn::Find(hn::ScalableTag<float>(), value, x, static_cast<size_t>(count)));
  return i < count ? i : -1;
}

// out[i] = e^((x[i] - largest) / temperature), 0 where below `least`; returns their sum, added up in double. out may be
// null: then only the sum is wanted.
double Weights(const float* x, int64_t count, float largest, float temperature, float least, float* out) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kChunk = 1024;
  const auto weigh = [&](const float* from, float* to) HWY_ATTR {
    const auto shifted = hn::Sub(hn::LoadU(d, from), hn::Set(d, largest));
    const auto w = hn::Exp(d, hn::Div(shifted, hn::Set(d, temperature)));
    const auto kept = hn::IfThenElseZero(hn::Ge(w, hn::Set(d, least)), w);
    if (to) hn::StoreU(kept, d, to);
    return kept;
  };
  double total = 0;
  int64_t i = 0;
  while (i + lanes <= count) {
    auto sum = hn::Zero(d);
    for (const int64_t end = std::min(i + kChunk, count); i + lanes <= end; i += lanes) {
      sum = hn::Add(sum, weigh(x + i, out ? out + i : nullptr));
    }
    total += hn::GetLane(hn::SumOfLanes(d, sum));
  }
  HWY_ALIGN float rest[HWY_MAX_BYTES / sizeof(float)] = {};
  std::copy(x + i, x + count, rest);
  weigh(rest, rest);
  for (int64_t j = 0; i + j < count; j++) total += rest[j];
  if (out) std::copy_n(rest, count - i, out + i);
  return total;
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaring::cpu {

HWY_EXPORT(Largest);
HWY_EXPORT(IndexOf);
HWY_EXPORT(Weights);

namespace {

struct Candidate {
  float logit;
  int32_t id;
  double weight;  // e^((logit - largest) / temperature)

  bool operator<(const Candidate& other) const {
    return logit != other.logit ? logit > other.logit : id < other.id;  // more likely first
  }
};

// The k most likely tokens in order. One pass: whatever is not above the k-th best so far has lost, since among equals
// the lower id was seen first.
std::vector<Candidate> most_likely(const float* logits, int64_t valid, int64_t k) {
  const size_t keep = static_cast<size_t>(k), room = std::max<size_t>(2 * keep, 256);
  std::vector<Candidate> best;
  best.reserve(std::min<size_t>(room, valid));
  float bar = 0;
  bool full = false;
  for (int64_t id = 0; id < valid; id++) {
    if (full && !(logits[id] > bar)) continue;
    best.push_back({.logit = logits[id], .id = static_cast<int32_t>(id), .weight = 0});
    if (best.size() < room) continue;
    std::nth_element(best.begin(), best.begin() + k - 1, best.end());
    best.resize(keep);
    bar = best.back().logit;
    full = true;
  }
  std::partial_sort(best.begin(), best.begin() + std::min(keep, best.size()), best.end());
  best.resize(std::min(keep, best.size()));
  return best;
}

// The k most likely tokens with their weights; returns their mass.
double weighted(const float* logits, int64_t valid, int64_t k, float temperature, std::vector<Candidate>& best) {
  best = most_likely(logits, valid, k);
  double mass = 0;
  for (Candidate& c : best) {
    c.weight = std::exp((static_cast<double>(c.logit) - best[0].logit) / temperature);
    mass += c.weight;
  }
  return mass;
}

// Keeps the shortest prefix whose weights reach `wanted`. False when all of them together do not.
bool cut_at_mass(std::vector<Candidate>& best, double wanted) {
  double mass = 0;
  for (size_t n = 0; n < best.size(); n++) {
    mass += best[n].weight;
    if (mass < wanted) continue;
    best.resize(n + 1);
    return true;
  }
  return false;
}

// out[valid] without top_k and top_p.
void distribution_of_all(const float* logits, int64_t valid, float largest, const SamplingParams& p, float* out) {
  const double sum = HWY_DYNAMIC_DISPATCH(Weights)(logits, valid, largest, p.temperature, p.min_p, out);
  for (int64_t i = 0; i < valid; i++) out[i] = static_cast<float>(out[i] / sum);
}

// out[valid] with top_k or top_p, where few tokens remain.
void distribution_of_few(const float* logits, int64_t valid, float largest, const SamplingParams& p, float* out) {
  std::vector<Candidate> best;
  if (p.top_k > 0) {
    const double mass = weighted(logits, valid, std::min<int64_t>(p.top_k, valid), p.temperature, best);
    if (p.top_p < 1) cut_at_mass(best, p.top_p * mass);
  } else {
    const double mass = HWY_DYNAMIC_DISPATCH(Weights)(logits, valid, largest, p.temperature, 0, out);
    for (int64_t k = 256;; k *= 8) {
      weighted(logits, valid, std::min(k, valid), p.temperature, best);
      if (cut_at_mass(best, p.top_p * mass) || k >= valid) break;
    }
  }
  while (best.back().weight < p.min_p) best.pop_back();  // the first weight is 1

  double sum = 0;
  for (const Candidate& c : best) sum += c.weight;
  std::fill_n(out, valid, 0.0f);
  for (const Candidate& c : best) out[c.id] = static_cast<float>(c.weight / sum);
}

}  // namespace

// Memory traffic: the first `valid` logits of a row once, and up to one part of them again to find the place.
void argmax(const ArgmaxArgs& args, Stream& stream) {
  check(args);
  constexpr int64_t kPart = 16384;  // of a row: enough work for a task
  const int64_t rows = args.logits.shape[0], parts = (args.valid + kPart - 1) / kPart;
  std::vector<float> largest(rows * parts);
  pool_of(stream).parallel_for(rows * parts, [&](int64_t i) {
    const int64_t begin = i % parts * kPart;
    bool has_nan;
    largest[i] =
        HWY_DYNAMIC_DISPATCH(Largest)(args.logits.f32(i / parts, begin), std::min(kPart, args.valid - begin), has_nan);
  });
  for (int64_t r = 0; r < rows; r++) {
    const float* row = &largest[r * parts];
    const int64_t part = std::max_element(row, row + parts) - row, begin = part * kPart;  // the first of equals
    // A row of -inf and NaN has its first -inf in any part.
    const int64_t at = HWY_DYNAMIC_DISPATCH(IndexOf)(args.logits.f32(r, begin), args.valid - begin, row[part]);
    args.out[r] = static_cast<int32_t>(at < 0 ? -1 : begin + at);
  }
}

// Memory traffic of a row: logits and out once, 8 vocab bytes, and again for each pass that weights and filters need.
void probabilities(const ProbabilitiesArgs& args, Stream& stream) {
  check(args);
  pool_of(stream).parallel_for(args.logits.shape[0], [&](int64_t r) {
    const float* logits = args.logits.f32(r);
    const SamplingParams& params = args.params[r];
    float* out = args.out.f32(r);
    std::fill(out + args.valid, out + args.out.shape[1], 0.0f);
    bool has_nan;
    const float largest = HWY_DYNAMIC_DISPATCH(Largest)(logits, args.valid, has_nan);
    if (has_nan || !std::isfinite(largest)) {
      std::fill_n(out, args.valid, 0.0f);
    } else if (params.top_k > 0 || params.top_p < 1) {
      distribution_of_few(logits, args.valid, largest, params, out);
    } else {
      distribution_of_all(logits, args.valid, largest, params, out);
    }
  });
}

// Memory traffic: the first `valid` logits of a row twice, three times with `top`.
void log_probabilities(const LogProbabilitiesArgs& args, Stream& stream) {
  check(args);
  pool_of(stream).parallel_for(args.logits.shape[0], [&](int64_t r) {
    const float* logits = args.logits.f32(r);
    int32_t* const top_ids = args.top_ids + r * args.top;
    float* const top_out = args.top_out + r * args.top;
    bool has_nan;
    const float largest = HWY_DYNAMIC_DISPATCH(Largest)(logits, args.valid, has_nan);
    if (has_nan || !std::isfinite(largest)) {
      args.out[r] = std::numeric_limits<float>::quiet_NaN();
      std::fill_n(top_ids, args.top, -1);
      std::fill_n(top_out, args.top, args.out[r]);
      return;
    }
    const double sum = HWY_DYNAMIC_DISPATCH(Weights)(logits, args.valid, largest, 1, 0, nullptr);
    const auto log_of = [&](float logit) { return static_cast<float>(double{logit} - largest - std::log(sum)); };
    args.out[r] = log_of(logits[args.ids[r]]);
    if (args.top == 0) return;
    const std::vector<Candidate> best = most_likely(logits, args.valid, args.top);
    for (int32_t i = 0; i < args.top; i++) top_ids[i] = best[i].id, top_out[i] = log_of(best[i].logit);
  });
}

}  // namespace deltaring::cpu
#endif
