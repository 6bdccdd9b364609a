// A caller that ends requests whose output is no text.
#include "engine/engine_testing.h"

namespace deltaring::test {
namespace {

TEST(Engine, OnStepEndsTheRequestWhereNoTextComes) {
  Engine engine(engine_options("ngram", 4));
  constexpr int32_t kEnd = 4064;  // an end token: ignored, it is no text
  GenerateOptions g = greedy(40);
  g.logit_bias[kEnd] = 100;
  const GenerateResult whole = run(engine, kPrompts[0], g);
  EXPECT_EQ(whole.text, "");
  for (const size_t enough : {1, 2, 4}) {
    std::vector<int64_t> out;
    g.on_step = [&](int64_t tokens) { return out.push_back(tokens), out.size() < enough; };
    const GenerateResult r = engine.generate(std::string_view(kPrompts[0]), g, [](std::string_view) {
      ADD_FAILURE() << "there is no text";
      return true;
    });
    EXPECT_EQ(r.finish_reason, FinishReason::cancelled);
    EXPECT_EQ(out.size(), enough);
    EXPECT_EQ(out.front(), 1) << "the prefill's token";
    EXPECT_EQ(out.back(), static_cast<int64_t>(r.tokens.size()));
    EXPECT_EQ(r.verify_steps, static_cast<int64_t>(enough) - 1);
    EXPECT_EQ(r.tokens, std::vector<int32_t>(r.tokens.size(), kEnd));
    expect_sane_statistics(r, 4, "ended early");
  }
  g.on_step = {};
  expect_same(run(engine, kPrompts[0], g), whole, "after an early end");
}

}  // namespace
}  // namespace deltaring::test
