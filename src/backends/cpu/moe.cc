#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "backends/cpu/for_rows.h"
#include "backends/cpu/ops.h"
#include "backends/cpu/products.h"

namespace deltaring::cpu {

namespace {

float sigmoid(float x) { return static_cast<float>(1.0 / (1.0 + std::exp(-double{x}))); }

// The k largest logits in descending order, equal ones by ascending id; NaNs come last.
void choose(const float* logits, int64_t E, int64_t k, int32_t* expert) {
  const auto before = [logits](int32_t a, int32_t b) {  // a strict order whatever the logits are
    const bool a_nan = std::isnan(logits[a]), b_nan = std::isnan(logits[b]);
    if (a_nan || b_nan) return a_nan == b_nan ? a < b : b_nan;
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  int64_t count = 0;
  for (int32_t e = 0; e < E; e++) {  // insertion: nearly every expert is behind the last of the chosen
    if (count == k && !before(e, expert[k - 1])) continue;
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && before(e, expert[at - 1]); at--) expert[at] = expert[at - 1];
    expert[at] = e;
  }
}

void route_row(const MoeRouteArgs& args, int64_t t) {
  const int64_t E = args.logits.shape[1], k = args.k, choices = args.weight.shape[1];
  const float* logits = args.logits.f32(t);
  int32_t* expert = args.expert + t * choices;
  float* weight = args.weight.f32(t);
  choose(logits, E, k, expert);
  const double largest = logits[expert[0]];
  double all = 0, chosen = 0;
  for (int64_t e = 0; e < E; e++) all += std::exp(logits[e] - largest);  // of a NaN too: it shows in every weight
  for (int64_t i = 0; i < k; i++) chosen += std::exp(logits[expert[i]] - largest);
  const double sum = args.renormalise && !std::isnan(all) ? chosen : all;
  for (int64_t i = 0; i < k; i++) weight[i] = static_cast<float>(std::exp(logits[expert[i]] - largest) / sum);
  if (!args.shared) return;
  expert[k] = static_cast<int32_t>(E);
  weight[k] = sigmoid(*args.shared.f32(t, 0));
}

// The gathered rows [begin, end) of the tokens that chose one expert.
struct Group {
  const ExpertWeights& weights;
  int64_t begin, end;

  View<2> of(const View<2>& all, int64_t columns) const {
    View<2> part = all.rows(begin, end - begin);
    part.shape[1] = columns;
    return part;
  }
};

}  // namespace

void moe_route(const MoeRouteArgs& args, Stream& stream) {
  check(args);
  constexpr int64_t kExp = 20;  // work of an exponential in operations of for_rows
  for_rows(stream, args.logits.shape[0], kExp * args.logits.shape[1], [&args](int64_t t) { route_row(args, t); });
}

// Rows are gathered by expert, so that the weights of an expert are read once. Memory traffic: weights of the experts
// that were chosen; each of the scratch rows three times.
void moe_experts(const MoeExpertsArgs& args, Stream& stream) {
  check(args);
  const auto [tokens, H] = args.x.shape;
  const int64_t choices = args.weight.shape[1], count = tokens * choices;
  if (count == 0) return;
  std::vector<int32_t> order(count), row_of(count);  // gathered row -> choice, and back
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&args](int32_t i) { return args.expert[i]; });
  std::vector<Group> groups;
  for (int64_t i = 0; i < count; i++) {
    row_of[order[i]] = static_cast<int32_t>(i);
    if (i == 0 || args.expert[order[i]] != args.expert[order[i - 1]])
      groups.push_back({.weights = args.experts[args.expert[order[i]]], .begin = i, .end = i});
    groups.back().end++;
  }

  for_rows(stream, count, H,
           [&, H = H](int64_t i) { std::copy_n(args.x.f32(order[i] / choices), H, args.rows.f32(i)); });
  std::vector<LinearArgs> products;
  for (const Group& g : groups) {
    const View<2> x = g.of(args.rows, H);
    const int64_t I = g.weights.gate.N();
    products.push_back({.x = x, .w = g.weights.gate, .out = g.of(args.gate, I)});
    products.push_back({.x = x, .w = g.weights.up, .out = g.of(args.up, I)});
  }
  multiply(products, stream);
  products.clear();
  for (const Group& g : groups) {
    const View<2> hidden = g.of(args.gate, g.weights.gate.N());
    swiglu({.gate = hidden, .up = g.of(args.up, hidden.shape[1]), .out = hidden}, stream);
    products.push_back({.x = hidden, .w = g.weights.down, .out = g.of(args.rows, H)});
  }
  multiply(products, stream);
  for_rows(stream, tokens, H * choices, [&, H = H](int64_t t) {
    const auto row = [&](int64_t i) { return args.rows.f32(row_of[t * choices + i]); };
    float *sum = row(0), *out = args.out.f32(t);
    for (int64_t c = 0; c < H; c++) sum[c] *= *args.weight.f32(t, 0);
    for (int64_t i = 1; i < choices; i++) {
      const float *part = row(i), weight = *args.weight.f32(t, i);
      for (int64_t c = 0; c < H; c++) sum[c] += weight * part[c];
    }
    for (int64_t c = 0; c < H; c++) out[c] += sum[c];
  });
}

}  // namespace deltaring::cpu
