#include "engine/stops.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace deltaring {

StopRules::Matcher::Matcher(const std::string& stop_string) : text(stop_string), border(text.size() + 1) {
  for (size_t i = 1; i < text.size(); i++) {
    size_t k = border[i];
    while (k > 0 && text[k] != text[i]) k = border[k];
    border[i + 1] = text[k] == text[i] ? k + 1 : 0;
  }
}

bool StopRules::Matcher::advance(char c) {
  while (matched > 0 && (matched == text.size() || text[matched] != c)) matched = border[matched];
  if (text[matched] == c) matched++;
  return matched == text.size();
}

StopRules::StopRules(const StopOptions& options) : stop_tokens_(options.stop_tokens), max_tokens_(options.max_tokens) {
  check(max_tokens_ >= 1, "max_tokens is {}; at least 1 is needed, for example 256", max_tokens_);
  if (!options.ignore_eos) {
    stop_tokens_.insert(stop_tokens_.end(), options.eos_tokens.begin(), options.eos_tokens.end());
  }
  std::sort(stop_tokens_.begin(), stop_tokens_.end());
  for (const std::string& stop_string : options.stop_strings) {
    check(!stop_string.empty(), "a stop string is empty; leave it out or give at least one character, for example END");
    // What is held back begins like a stop string; so it begins with a character if the stop string does.
    check((stop_string[0] & 0xc0) != 0x80, "a stop string starts inside a UTF-8 character; whole characters work");
    matchers_.emplace_back(stop_string);
  }
}

bool StopRules::is_stop_token(int32_t token) const {
  return std::binary_search(stop_tokens_.begin(), stop_tokens_.end(), token);
}

std::string_view StopRules::stop_string() const {
  return stop_ == Stop::stop_string ? std::string_view(matchers_[found_].text) : std::string_view();
}

StopRules::Step StopRules::push(int32_t token, std::string_view text) {
  if (stop_ != Stop::none) return {.text = {}, .stop = stop_};
  tokens_++;
  std::string shown;
  if (is_stop_token(token)) {
    stop_ = Stop::stop_token;
  } else {
    shown = scan(text);
    if (stop_ == Stop::none && tokens_ >= max_tokens_) stop_ = Stop::length;
  }
  return {.text = std::move(shown), .stop = stop_};
}

std::string StopRules::finish(std::string_view tail) {
  if (stop_ == Stop::stop_string) return {};
  std::string rest = scan(tail);
  if (stop_ != Stop::stop_string) rest += held();
  for (Matcher& matcher : matchers_) matcher.matched = 0;
  return rest;
}

// The text that was fed and not shown. It begins a stop string, so that string keeps it.
std::string_view StopRules::held() const {
  std::string_view longest;
  for (const Matcher& matcher : matchers_) {
    if (matcher.matched > longest.size()) longest = std::string_view(matcher.text).substr(0, matcher.matched);
  }
  return longest;
}

// The part of held + text that may be shown; stops when a stop string is complete.
std::string StopRules::scan(std::string_view text) {
  const std::string_view before = held();
  size_t cut = std::string_view::npos;  // offsets count from the start of `before`
  for (size_t i = 0; i < text.size(); i++) {
    for (size_t m = 0; m < matchers_.size(); m++) {
      if (!matchers_[m].advance(text[i])) continue;
      const size_t start = before.size() + i + 1 - matchers_[m].text.size();
      // On equal starts the later end is the longer string.
      if (start > cut) continue;
      cut = start;
      found_ = m;
      stop_ = Stop::stop_string;
    }
  }
  const size_t shown = stop_ == Stop::stop_string ? cut : before.size() + text.size() - held().size();
  std::string out(before.substr(0, shown));
  if (shown > before.size()) out += text.substr(0, shown - before.size());
  return out;
}

}  // namespace deltaring
