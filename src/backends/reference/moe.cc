#include <cmath>
#include <vector>

#include "backends/reference/ops.h"
#include "backends/reference/weight.h"

namespace deltaring::reference {

namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// The largest of the logits that is not taken, the first of equals; where only NaN is left, the first that is not
// taken.
int32_t next_choice(const float* logits, const std::vector<bool>& taken) {
  int32_t best = -1, first = -1;
  for (int32_t e = 0; e < static_cast<int32_t>(taken.size()); e++) {
    if (taken[e]) continue;
    if (first < 0) first = e;
    if (!std::isnan(logits[e]) && (best < 0 || logits[e] > logits[best])) best = e;
  }
  return best < 0 ? first : best;
}

// softmax over all of row; NaN everywhere if any is NaN.
std::vector<double> softmax(const float* row, int64_t count) {
  double largest = -HUGE_VAL, sum = 0;
  for (int64_t e = 0; e < count; e++) largest = row[e] > largest ? row[e] : largest;
  std::vector<double> p(count);
  for (int64_t e = 0; e < count; e++) sum += p[e] = std::exp(row[e] - largest);
  for (double& x : p) x /= sum;
  return p;
}

}  // namespace

void moe_route(const MoeRouteArgs& args, Stream&) {
  check(args);
  const auto [tokens, E] = args.logits.shape;
  const int64_t choices = args.weight.shape[1];
  for (int64_t t = 0; t < tokens; t++) {
    const std::vector<double> p = softmax(args.logits.f32(t), E);
    int32_t* expert = args.expert + t * choices;
    std::vector<bool> taken(E);
    double sum = 0;
    for (int64_t i = 0; i < args.k; i++) {
      expert[i] = next_choice(args.logits.f32(t), taken);
      taken[expert[i]] = true;
      sum += p[expert[i]];
    }
    for (int64_t i = 0; i < args.k; i++)
      *args.weight.f32(t, i) = static_cast<float>(args.renormalise ? p[expert[i]] / sum : p[expert[i]]);
    if (!args.shared) continue;
    expert[args.k] = static_cast<int32_t>(E);
    *args.weight.f32(t, args.k) = static_cast<float>(sigmoid(*args.shared.f32(t, 0)));
  }
}

void moe_experts(const MoeExpertsArgs& args, Stream&) {
  check(args);
  const auto [tokens, H] = args.x.shape;
  const int64_t choices = args.weight.shape[1];
  for (int64_t t = 0; t < tokens; t++) {
    std::vector<double> out(H);
    for (int64_t i = 0; i < choices; i++) {
      const ExpertWeights& e = args.experts[args.expert[t * choices + i]];
      const int64_t I = e.gate.N();
      std::vector<double> hidden(I);
      for (int64_t j = 0; j < I; j++) {
        double gate = 0, up = 0;
        for (int64_t c = 0; c < H; c++) {
          const double x = *args.x.f32(t, c);
          gate += x * weight(e.gate, j, c), up += x * weight(e.up, j, c);
        }
        hidden[j] = gate * sigmoid(gate) * up;
      }
      for (int64_t c = 0; c < H; c++) {
        double down = 0;
        for (int64_t j = 0; j < I; j++) down += hidden[j] * weight(e.down, c, j);
        out[c] += *args.weight.f32(t, i) * down;
      }
    }
    for (int64_t c = 0; c < H; c++) *args.out.f32(t, c) = static_cast<float>(*args.out.f32(t, c) + out[c]);
  }
}

}  // namespace deltaring::reference
