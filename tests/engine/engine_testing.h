// What the engine tests share: the embedded model, prompts that drafters are right and wrong about, comparisons.
#pragma once
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "deltaring/engine.h"
#include "model/utf8.h"

namespace deltaring::test {

constexpr const char* kTinyPy = DELTARING_SOURCE_DIR "/models/tiny-py";

// Python that the model knows, a text that repeats itself, and one with several bytes a character.
constexpr const char* kPrompts[] = {"def fibonacci(n):\n", "x = [1, 2, 3]\ny = [1, 2, 3]\nz = [1,",
                                    "# \u00fcber \u4e16\u754c \U0001f642\ntext = '"};

// One thread: tests run side by side.
inline EngineOptions engine_options(const std::string& algorithm, int64_t T = 4, int64_t context = 512) {
  EngineOptions o;
  o.model = kTinyPy, o.threads = 1, o.context_length = context;
  o.speculative_algorithm = algorithm, o.speculative_num_draft_tokens = T;
  return o;
}

// Greedy, not stopped by the model's end tokens.
inline GenerateOptions greedy(int64_t max_tokens) {
  return {.max_tokens = max_tokens, .ignore_eos = true, .logits_digest = true};
}

inline GenerateResult run(Engine& engine, const std::string& prompt, const GenerateOptions& o) {
  return engine.generate(std::string_view(prompt), o);
}

inline bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = first_unit(text.substr(at));
    if (unit.kind != Utf8::valid) return false;
    at += unit.length;
  }
  return true;
}

// The same output, bit for bit.
inline void expect_same(const GenerateResult& got, const GenerateResult& want, const std::string& where) {
  EXPECT_EQ(got.tokens, want.tokens) << where;
  EXPECT_EQ(got.text, want.text) << where;
  EXPECT_EQ(got.logits_digest, want.logits_digest) << where;
  EXPECT_EQ(static_cast<int>(got.finish_reason), static_cast<int>(want.finish_reason)) << where;
}

// Counts that must agree with each other whatever happened.
inline void expect_sane_statistics(const GenerateResult& r, int64_t T, const std::string& where) {
  const auto sum = [](const auto& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); };
  EXPECT_EQ(r.step_tokens, r.accepted + r.verify_steps) << where;
  EXPECT_EQ(sum(r.step_lengths), r.step_tokens) << where;
  EXPECT_EQ(static_cast<int64_t>(r.step_lengths.size()), r.verify_steps) << where;
  EXPECT_EQ(static_cast<int64_t>(r.drafted_at.size()), T - 1) << where;
  EXPECT_EQ(static_cast<int64_t>(r.accepted_at.size()), T - 1) << where;
  EXPECT_EQ(sum(r.drafted_at), r.drafted) << where;
  EXPECT_EQ(sum(r.accepted_at), r.accepted) << where;
  EXPECT_LE(static_cast<int64_t>(r.tokens.size()), 1 + r.step_tokens) << where;
  EXPECT_GE(static_cast<int64_t>(r.tokens.size()), 1) << where;
  for (size_t i = 0; i < r.drafted_at.size(); i++) {
    EXPECT_LE(r.accepted_at[i], r.drafted_at[i]) << where;
    EXPECT_LE(r.drafted_at[i], i ? r.drafted_at[i - 1] : r.verify_steps) << where;
    if (i) {
      EXPECT_LE(r.accepted_at[i], r.accepted_at[i - 1]) << where;
    }
  }
  EXPECT_GE(r.prefill_seconds, 0) << where;
  EXPECT_GE(r.decode_seconds, 0) << where;
}

}  // namespace deltaring::test
