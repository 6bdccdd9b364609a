// UTF-8 the way Python reads it (errors="replace"), and NFC.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace deltaring {

enum class Utf8 {
  valid,       // one code point
  invalid,     // a maximal subsequence that starts no code point: becomes one U+FFFD
  incomplete,  // the end of the text cuts a code point: more bytes may complete it
};

struct Utf8Unit {
  Utf8 kind;
  size_t length;  // bytes, 1..4
};

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// The unit at the start of `rest`, which must not be empty.
Utf8Unit first_unit(std::string_view rest);

// Appends the text of `bytes` to `text`: code points as they are, U+FFFD for every invalid unit. Returns how many bytes
// at the end form an incomplete unit (0..3); nothing is appended for those.
size_t append_text(std::string_view bytes, std::string& text);

// bytes.decode("utf-8", "replace") of Python, as UTF-8 again.
std::string replace_invalid(std::string_view bytes);

// Unicode normalization form C of valid UTF-8 (U+0000 included). O(n log n) also for long runs of combining marks.
std::string nfc(std::string_view text);

}  // namespace deltaring
