// Stop strings against the text that would have been: cut where std::string::find says.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/engine_testing.h"

namespace deltaring::test {

// Stops at pieces of the plain text that start at every `step`-th byte, so inside and across tokens and blocks. Returns
// how many fell inside an accepted block.
inline int64_t check_stop_strings(Engine& engine, const std::string& prompt, int64_t tokens, size_t step,
                                  const std::vector<size_t>& lengths) {
  const GenerateResult whole = run(engine, prompt, greedy(tokens));
  EXPECT_GT(whole.text.size(), 20u);
  int64_t cut_blocks = 0;
  for (size_t at = 0; at < whole.text.size(); at += step) {
    const size_t length = lengths[at / step % lengths.size()];
    const std::string stop = whole.text.substr(at, length);
    if (!is_utf8(stop)) continue;
    GenerateOptions g = greedy(tokens);
    g.stop = {"never in the text", stop};
    std::string stream;
    const GenerateResult r = engine.generate(std::string_view(prompt), g, [&](std::string_view piece) {
      EXPECT_TRUE(is_utf8(piece));
      stream += piece;
      return true;
    });
    const std::string want = whole.text.substr(0, whole.text.find(stop)), where = "stop at '" + stop + "'";
    EXPECT_EQ(r.text, want) << where;
    EXPECT_EQ(stream, want) << where;
    EXPECT_EQ(r.finish_reason, FinishReason::stop_string) << where;
    EXPECT_TRUE(std::equal(r.tokens.begin(), r.tokens.end(), whole.tokens.begin(),
                           whole.tokens.begin() + std::min(r.tokens.size(), whole.tokens.size())))
        << where;
    // No token more than the one that completes the stop string.
    const GenerateResult less = run(engine, prompt, greedy(std::max<int64_t>(1, r.tokens.size() - 1)));
    if (r.tokens.size() > 1) {
      EXPECT_EQ(less.text.find(stop), std::string::npos) << where;
    }
    cut_blocks += static_cast<int64_t>(r.tokens.size()) < 1 + r.step_tokens;
  }
  return cut_blocks;
}

}  // namespace deltaring::test
