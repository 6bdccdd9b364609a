// When one request ends, and which of its text may be shown meanwhile.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace deltaring {

enum class Stop { none, stop_token, stop_string, length };

struct StopOptions {
  std::vector<int32_t> eos_tokens{};                         // the model's
  std::vector<int32_t> stop_tokens{};                        // the request's own, honoured with ignore_eos too
  std::vector<std::string> stop_strings{};                   // UTF-8, not empty
  int64_t max_tokens = std::numeric_limits<int64_t>::max();  // >= 1
  bool ignore_eos = false;                                   // eos_tokens stop nothing
};

// Fed the emitted tokens of a request one by one, in order; a step that emits several feeds them until one stops.
// The text ends right before the first stop string: of those that are complete after a token the one that starts
// earliest, of these the longest. It never waits for a string that is not complete yet. A stop string wins over a stop
// token or the length behind it, a stop token over the length. Time is linear in the text for each stop string.
class StopRules {
 public:
  // Throws Error when a stop string is empty or starts inside a UTF-8 character, or max_tokens < 1.
  explicit StopRules(const StopOptions& options);

  struct Step {
    std::string text;  // may be shown now; whole characters if all text fed is
    Stop stop;         // as stop()
  };

  // `text` is what the token completes, possibly nothing; that of a stop token is not part of the output and ignored.
  // The longest end of the text that a stop string begins with is held back. After a stop nothing is counted or shown.
  Step push(int32_t token, std::string_view text);

  // Call when no token follows, stopped or not: `tail` is the text a decoder still held. Returns the rest of the
  // output; a stop string that the tail completes cuts it and becomes the reason.
  std::string finish(std::string_view tail = {});

  bool is_stop_token(int32_t token) const;
  Stop stop() const { return stop_; }
  int64_t tokens() const { return tokens_; }  // counted so far, the one that stopped included
  std::string_view stop_string() const;       // the one that stopped, else empty

 private:
  // A Knuth-Morris-Pratt matcher: `matched` is the longest end of the text so far that `text` begins with.
  struct Matcher {
    std::string text;
    std::vector<size_t> border;  // [text + 1] longest proper prefix of text[0, i) that also ends it
    size_t matched = 0;

    explicit Matcher(const std::string& stop_string);
    bool advance(char c);  // true when the text so far ends with the stop string
  };

  std::string scan(std::string_view text);
  std::string_view held() const;

  std::vector<int32_t> stop_tokens_;  // sorted
  std::vector<Matcher> matchers_;
  int64_t max_tokens_;
  int64_t tokens_ = 0;
  Stop stop_ = Stop::none;
  size_t found_ = 0;  // the matcher that stopped, when stop_ is stop_string
};

}  // namespace deltaring
