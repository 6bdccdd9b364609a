#include "engine/stops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace deltaring {
namespace {

struct Fed {
  int32_t token;
  std::string text;
};

struct Outcome {
  std::string text;
  Stop stop;
  int64_t tokens;
  std::string stop_string;
  std::vector<std::string> shown;  // by each push, then by finish

  bool operator==(const Outcome&) const = default;
};

// Feeds to the end even when stopped, as a step with more accepted tokens would.
Outcome run(const StopOptions& options, const std::vector<Fed>& fed, const std::string& tail = "") {
  StopRules rules(options);
  Outcome outcome{};
  for (const Fed& f : fed) {
    const StopRules::Step step = rules.push(f.token, f.text);
    EXPECT_EQ(step.stop, rules.stop());
    outcome.shown.push_back(step.text);
  }
  outcome.shown.push_back(rules.finish(tail));
  for (const std::string& text : outcome.shown) outcome.text += text;
  outcome.stop = rules.stop();
  outcome.tokens = rules.tokens();
  outcome.stop_string = rules.stop_string();
  return outcome;
}

std::vector<Fed> texts(const std::vector<std::string>& pieces) {
  std::vector<Fed> fed;
  for (const std::string& piece : pieces) fed.push_back({.token = 1, .text = piece});
  return fed;
}

StopOptions strings(std::vector<std::string> stop_strings) { return {.stop_strings = std::move(stop_strings)}; }

TEST(Stops, WithoutRulesAllTextIsShownAtOnce) {
  const Outcome o = run({}, texts({"a", "", "bc"}));
  EXPECT_EQ(o.shown, (std::vector<std::string>{"a", "", "bc", ""}));
  EXPECT_EQ(o.stop, Stop::none);
  EXPECT_EQ(o.tokens, 3);
}

TEST(Stops, AStopTokenEndsTheTextBeforeItAndDropsTheRestOfTheBlock) {
  const Outcome o = run({.stop_tokens = {9, 3}}, {{1, "a"}, {3, "<stop>"}, {1, "b"}, {9, "c"}});
  EXPECT_EQ(o.text, "a");
  EXPECT_EQ(o.stop, Stop::stop_token);
  EXPECT_EQ(o.tokens, 2);
}

TEST(Stops, IgnoreEosIgnoresTheModelsTokensOnly) {
  StopOptions options{.eos_tokens = {5}, .stop_tokens = {6}};
  EXPECT_EQ(run(options, {{5, ""}, {6, ""}}).tokens, 1);
  options.ignore_eos = true;
  const Outcome o = run(options, {{5, "<eos>"}, {6, ""}, {1, "x"}});
  EXPECT_EQ(o.tokens, 2);
  EXPECT_EQ(o.text, "<eos>");
  EXPECT_EQ(o.stop, Stop::stop_token);
  EXPECT_FALSE(StopRules(options).is_stop_token(5));
  EXPECT_TRUE(StopRules(options).is_stop_token(6));
}

TEST(Stops, LengthIsExact) {
  for (int64_t max = 1; max <= 20; max++) {
    const Outcome o = run({.max_tokens = max}, texts(std::vector<std::string>(20, "x")));
    EXPECT_EQ(o.tokens, max);
    EXPECT_EQ(o.text, std::string(max, 'x'));
    EXPECT_EQ(o.stop, Stop::length);
  }
  EXPECT_EQ(run({.max_tokens = 3}, texts({"x", "x"})).stop, Stop::none);
}

TEST(Stops, OnOneTokenAStringWinsOverTheLengthAndAStopTokenToo) {
  EXPECT_EQ(run({.stop_strings = {"b"}, .max_tokens = 2}, texts({"a", "b"})).stop, Stop::stop_string);
  EXPECT_EQ(run({.stop_tokens = {4}, .max_tokens = 2}, {{1, "a"}, {4, ""}}).stop, Stop::stop_token);
}

TEST(Stops, AStringOverManyTokens) {
  const Outcome o = run(strings({"</end>"}), texts({"ok ", "<", "/", "en", "d", ">", " more"}));
  EXPECT_EQ(o.shown, (std::vector<std::string>{"ok ", "", "", "", "", "", "", ""}));
  EXPECT_EQ(o.stop, Stop::stop_string);
  EXPECT_EQ(o.stop_string, "</end>");
  EXPECT_EQ(o.tokens, 6);
}

TEST(Stops, AStringInsideTheTextOfOneToken) {
  const Outcome o = run(strings({"STOP"}), texts({"one STOP two", "x"}));
  EXPECT_EQ(o.text, "one ");
  EXPECT_EQ(o.tokens, 1);
}

TEST(Stops, HeldTextIsShownWhenTheStringDoesNotComeTrue) {
  const Outcome o = run(strings({"abcd", "bce"}), texts({"xab", "c", "f"}));
  EXPECT_EQ(o.shown, (std::vector<std::string>{"x", "", "abcf", ""}));
  // "abc" can no longer become abcd, but its end "bc" can still become bce.
  EXPECT_EQ(run(strings({"abcd", "bce"}), texts({"ab", "ca", "bc", "e"})).shown,
            (std::vector<std::string>{"", "abc", "", "a", ""}));
  EXPECT_EQ(run(strings({"aab"}), texts({"a", "a", "a", "a", "b"})).shown,
            (std::vector<std::string>{"", "", "a", "a", "", ""}));
}

TEST(Stops, HeldTextIsShownAtTheEnd) {
  for (const StopOptions& options :
       {StopOptions{.stop_strings = {"abc"}}, StopOptions{.stop_strings = {"abc"}, .max_tokens = 2},
        StopOptions{.stop_tokens = {7}, .stop_strings = {"abc"}}}) {
    const Outcome o = run(options, {{1, "x"}, {1, "ab"}, {7, ""}});
    EXPECT_EQ(o.shown, (std::vector<std::string>{"x", "", "", "ab"}));
  }
}

TEST(Stops, TheTailOfTheDecoderBelongsToTheText) {
  EXPECT_EQ(run(strings({"abc"}), texts({"ab"}), "d").text, "abd");
  const Outcome o = run({.stop_strings = {"abc"}, .max_tokens = 1}, texts({"xab"}), "cd");
  EXPECT_EQ(o.text, "x");
  EXPECT_EQ(o.stop, Stop::stop_string);
  EXPECT_EQ(run(strings({"abc"}), texts({"xab"}), "c").text, "x");
  EXPECT_EQ(run(strings({"x"}), texts({"ax"}), "tail").text, "a");
  StopRules rules(strings({"abc"}));
  rules.push(1, "ab");
  EXPECT_EQ(rules.finish(), "ab");
  EXPECT_EQ(rules.finish(), "");
}

TEST(Stops, OverlappingCandidates) {
  EXPECT_EQ(run(strings({"ab", "abc"}), texts({"x", "abc"})).stop_string, "abc");
  EXPECT_EQ(run(strings({"abc", "ab"}), texts({"x", "a", "b", "c"})).stop_string, "ab");  // complete first
  EXPECT_EQ(run(strings({"bcd", "abcde"}), texts({"abcdef"})).text, "");                  // starts first
  EXPECT_EQ(run(strings({"bcd", "abcde"}), texts({"abcd", "ef"})).text, "a");
  EXPECT_EQ(run(strings({"b", "b"}), texts({"ab"})).text, "a");
}

TEST(Stops, CharactersStayWhole) {
  // \xc3\xa9 and \xc3\xa8 share their first byte.
  const Outcome o = run(strings({"\xc3\xa9!"}), texts({"\xc3\xa8", "\xc3\xa9", "\xc3\xa9", "!"}));
  EXPECT_EQ(o.shown, (std::vector<std::string>{"\xc3\xa8", "", "\xc3\xa9", "", ""}));
  EXPECT_EQ(run(strings({"\xf0\x9f\x98\x80"}), texts({"a\xf0\x9f\x98\x81", "b\xf0\x9f\x98\x80"})).text,
            "a\xf0\x9f\x98\x81"
            "b");
}

TEST(Stops, RefusesWhatCannotWork) {
  EXPECT_THROW(StopRules(strings({"a", ""})), Error);
  EXPECT_THROW(StopRules(strings({"\xa9"})), Error);
  EXPECT_THROW(StopRules({.max_tokens = 0}), Error);
  EXPECT_THROW(StopRules({.max_tokens = -1}), Error);
}

// The same by searching the whole text anew after each token.
Outcome oracle(const StopOptions& options, const std::vector<Fed>& fed) {
  Outcome outcome{};
  std::string all;
  const auto& words = options.stop_strings;
  for (const Fed& f : fed) {
    outcome.shown.emplace_back();
    if (outcome.stop != Stop::none) continue;
    outcome.tokens++;
    if (std::ranges::count(options.stop_tokens, f.token)) {
      outcome.stop = Stop::stop_token;
      continue;
    }
    all += f.text;
    size_t shown = all.size();
    for (const std::string& word : words) {
      if (all.find(word) > shown || (all.find(word) == shown && word.size() < outcome.stop_string.size())) continue;
      if (all.find(word) == std::string::npos) continue;
      shown = all.find(word);
      outcome.stop_string = word;
      outcome.stop = Stop::stop_string;
    }
    if (outcome.stop == Stop::none) {
      for (const std::string& word : words) {
        for (size_t n = 1; n < word.size() && n <= all.size(); n++) {
          if (all.ends_with(word.substr(0, n))) shown = std::min(shown, all.size() - n);
        }
      }
      if (outcome.tokens == options.max_tokens) outcome.stop = Stop::length;
    } else {
      all.resize(shown);
    }
    outcome.shown.back() = all.substr(outcome.text.size(), shown - outcome.text.size());
    outcome.text += outcome.shown.back();
  }
  outcome.shown.push_back(all.substr(outcome.text.size()));
  outcome.text = all;
  return outcome;
}

TEST(Stops, EqualsTheOracle) {
  std::mt19937 random(8);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const auto word = [&](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; i++) text += static_cast<char>('a' + below(3));
    return text;
  };
  std::array<int, 4> ends{};
  for (int trial = 0; trial < 10'000; trial++) {
    StopOptions options{.stop_tokens = {0}, .max_tokens = static_cast<int64_t>(1 + below(30))};
    for (size_t n = below(4); n > 0; n--) options.stop_strings.push_back(word(1 + below(7)));
    std::vector<Fed> fed;
    for (size_t n = below(25); n > 0; n--) fed.push_back({static_cast<int32_t>(below(40)), word(below(4))});
    const Outcome got = run(options, fed);
    ASSERT_EQ(got, oracle(options, fed)) << "trial " << trial;
    ends[static_cast<size_t>(got.stop)]++;
  }
  for (int n : ends) EXPECT_GT(n, 500);
}

// Each character would cost the length of the stop string if held text were moved or searched again: minutes.
TEST(Stops, TakesLinearTime) {
  constexpr size_t kLong = 1 << 20;
  StopRules rules(strings({std::string(kLong / 2, 'a') + "b", std::string(kLong / 4, 'a') + "c"}));
  size_t shown = 0;
  for (size_t i = 0; i < kLong; i++) shown += rules.push(1, "a").text.size();
  EXPECT_EQ(shown, kLong / 2);
  EXPECT_EQ(rules.finish().size(), kLong / 2);
}

}  // namespace
}  // namespace deltaring
