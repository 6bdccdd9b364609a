#include "ops/moe.h"

#include <vector>

#include "ops/check_view.h"

namespace deltaring {

void check(const MoeRouteArgs& a) {
  const auto [tokens, E] = a.logits.shape;
  const int64_t choices = a.k + (a.shared ? 1 : 0);
  check_view("moe_route", "logits [tokens, E]", a.logits, DType::f32, a.logits.shape);
  if (a.shared) check_view("moe_route", "shared [tokens, 1]", a.shared, DType::f32, {tokens, 1});
  check(a.k >= 1 && a.k <= E, "moe_route: k is {}, want 1 to E = {}", a.k, E);
  check_output("moe_route", "weight [tokens, choices]", a.weight, DType::f32, {tokens, choices});
  check(a.expert || tokens == 0, "moe_route: expert [tokens, choices] is null");
}

void check(const MoeExpertsArgs& a) {
  const auto [tokens, choices] = a.weight.shape;
  const int64_t H = a.x.shape[1], rows = tokens * choices;
  check_view("moe_experts", "x [tokens, H]", a.x, DType::f32, {tokens, H});
  check_view("moe_experts", "weight [tokens, choices]", a.weight, DType::f32, a.weight.shape);
  check_output("moe_experts", "out [tokens, H]", a.out, DType::f32, {tokens, H});
  check_output("moe_experts", "rows [tokens * choices, H]", a.rows, DType::f32, {rows, H});
  check_output("moe_experts", "gate [tokens * choices, I]", a.gate, DType::f32, {rows, a.gate.shape[1]});
  check_output("moe_experts", "up [tokens * choices, I]", a.up, DType::f32, {rows, a.gate.shape[1]});
  check(a.expert || rows == 0, "moe_experts: expert [tokens, choices] is null");
  check(a.experts || rows == 0, "moe_experts: experts [count] is null");
  std::vector<bool> seen(a.count > 0 ? static_cast<size_t>(a.count) : 0);
  for (int64_t i = 0; i < rows; i++) {
    const int32_t e = a.expert[i];
    check(e >= 0 && e < a.count, "moe_experts: expert[{}] is {}, want [0, count = {})", i, e, a.count);
    if (seen[e]) continue;
    seen[e] = true;
    const ExpertWeights& expert = a.experts[e];
    const int64_t I = expert.gate.N();
    check_weight("moe_experts", "gate of an expert [I, H]", expert.gate, I, H);
    check_weight("moe_experts", "up of an expert [I, H]", expert.up, I, H);
    check_weight("moe_experts", "down of an expert [H, I]", expert.down, H, I);
    check(I >= 1 && I <= a.gate.shape[1], "moe_experts: expert {} has {} in I, want 1 to {} of the scratch", e, I,
          a.gate.shape[1]);
  }
}

}  // namespace deltaring
