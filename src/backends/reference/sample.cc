// The specification of argmax and of the sampling filters: one full sort, then each filter shortens the list.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backends/reference/ops.h"

namespace deltaring::reference {

namespace {

int32_t first_largest(const float* logits, int64_t valid) {
  int32_t best = -1;
  for (int32_t id = 0; id < valid; id++) {
    if (!std::isnan(logits[id]) && (best < 0 || logits[id] > logits[best])) best = id;
  }
  return best;
}

void distribution(const float* logits, int64_t valid, const SamplingParams& params, float* out) {
  std::vector<int32_t> order(valid);  // most likely first, ties by id
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });

  std::vector<double> weight(valid);  // relative to the most likely token
  for (int64_t i = 0; i < valid; i++) {
    weight[i] = std::exp((static_cast<double>(logits[order[i]]) - logits[order[0]]) / params.temperature);
  }

  int64_t kept = valid;
  if (params.top_k > 0) kept = std::min<int64_t>(kept, params.top_k);
  if (params.top_p < 1) {
    const double wanted = params.top_p * std::accumulate(weight.begin(), weight.begin() + kept, 0.0);
    double mass = weight[0];
    int64_t n = 1;
    while (n < kept && mass < wanted) mass += weight[n++];
    kept = n;
  }
  while (weight[kept - 1] < params.min_p) kept--;  // weight[0] is 1

  const double sum = std::accumulate(weight.begin(), weight.begin() + kept, 0.0);
  for (int64_t i = 0; i < kept; i++) out[order[i]] = static_cast<float>(weight[i] / sum);
}

}  // namespace

void argmax(const ArgmaxArgs& args, Stream&) {
  check(args);
  for (int64_t r = 0; r < args.logits.shape[0]; r++) args.out[r] = first_largest(args.logits.f32(r), args.valid);
}

void probabilities(const ProbabilitiesArgs& args, Stream&) {
  check(args);
  for (int64_t r = 0; r < args.logits.shape[0]; r++) {
    const float* logits = args.logits.f32(r);
    std::fill_n(args.out.f32(r), args.out.shape[1], 0.0f);
    const bool has_nan = std::any_of(logits, logits + args.valid, [](float x) { return std::isnan(x); });
    if (has_nan || !std::isfinite(logits[first_largest(logits, args.valid)])) continue;
    distribution(logits, args.valid, args.params[r], args.out.f32(r));
  }
}

void penalties(const PenaltiesArgs& args, Stream&) {
  check(args);
  const Penalties& p = args.penalties;
  std::vector<int64_t> output(args.valid);
  std::vector<bool> seen(args.valid);
  std::vector<double> bias(args.valid);
  for (const TokenCount& c : args.counts) output[c.id] = c.output, seen[c.id] = true;
  for (const TokenBias& b : args.bias) bias[b.id] = b.bias;
  for (int64_t r = 0; r < args.logits.shape[0]; r++) {
    if (r > 0) output[args.drafts[r - 1]]++, seen[args.drafts[r - 1]] = true;
    std::copy_n(args.logits.f32(r), args.logits.shape[1], args.out.f32(r));
    for (int64_t id = 0; id < args.valid; id++) {
      double z = args.logits.f32(r)[id];
      if (seen[id]) z = z > 0 ? z / p.repetition : z * p.repetition;
      if (output[id] > 0) z -= double{p.frequency} * static_cast<double>(output[id]) + p.presence;
      args.out.f32(r)[id] = static_cast<float>(z + bias[id]);
    }
  }
}

void log_probabilities(const LogProbabilitiesArgs& args, Stream&) {
  check(args);
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (int64_t r = 0; r < args.logits.shape[0]; r++) {
    const float* logits = args.logits.f32(r);
    const int32_t best = first_largest(logits, args.valid);
    double sum = 0;
    for (int64_t id = 0; id < args.valid; id++) sum += std::exp(double{logits[id]} - logits[std::max(best, 0)]);
    const bool has_law = best >= 0 && std::isfinite(logits[best]) && !std::isnan(sum);
    const auto log_of = [&](int32_t id) {
      return static_cast<float>(has_law ? double{logits[id]} - logits[best] - std::log(sum) : kNan);
    };
    args.out[r] = log_of(args.ids[r]);
    std::vector<int32_t> order(args.valid);
    std::iota(order.begin(), order.end(), 0);
    if (has_law) std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
    for (int64_t i = 0; i < args.top; i++) {
      args.top_ids[r * args.top + i] = has_law ? order[i] : -1;
      args.top_out[r * args.top + i] = log_of(order[i]);
    }
  }
}

}  // namespace deltaring::reference
