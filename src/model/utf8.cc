#include "model/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace deltaring {

namespace {

constexpr auto kNfcOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

struct Lead {
  size_t length;              // bytes of the code point, 0 for a byte that starts none
  unsigned char low = 0x80;   // bounds of the second byte: they exclude overlong forms, surrogates
  unsigned char high = 0xBF;  // and everything above U+10FFFF
};

Lead lead_of(unsigned char c) {
  if (c < 0x80) return {.length = 1};
  if (c < 0xC2) return {.length = 0};
  if (c < 0xE0) return {.length = 2};
  if (c == 0xE0) return {.length = 3, .low = 0xA0};
  if (c == 0xED) return {.length = 3, .high = 0x9F};
  if (c < 0xF0) return {.length = 3};
  if (c == 0xF0) return {.length = 4, .low = 0x90};
  if (c < 0xF4) return {.length = 4};
  if (c == 0xF4) return {.length = 4, .high = 0x8F};
  return {.length = 0};
}

int combining_class(int32_t point) { return utf8proc_get_property(point)->combining_class; }

// Stable sort of every run of combining marks by its class. utf8proc's own decomposition sorts by insertion, which is
// quadratic in a long run.
void reorder_marks(std::vector<int32_t>& points) {
  const auto is_mark = [](int32_t point) { return combining_class(point) != 0; };
  for (auto first = points.begin(); first != points.end();) {
    first = std::find_if(first, points.end(), is_mark);
    const auto last = std::find_if_not(first, points.end(), is_mark);
    std::stable_sort(first, last, [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    first = last;
  }
}

}  // namespace

Utf8Unit first_unit(std::string_view rest) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(rest[i]); };
  const Lead lead = lead_of(byte(0));
  if (lead.length == 0) return {Utf8::invalid, 1};
  for (size_t i = 1; i < lead.length; i++) {
    if (i == rest.size()) return {Utf8::incomplete, i};
    const unsigned char low = i == 1 ? lead.low : 0x80;
    const unsigned char high = i == 1 ? lead.high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {Utf8::invalid, i};
  }
  return {Utf8::valid, lead.length};
}

size_t append_text(std::string_view bytes, std::string& text) {
  size_t copied = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Unit unit = first_unit(bytes.substr(at));
    if (unit.kind != Utf8::valid) {
      text += bytes.substr(copied, at - copied);
      if (unit.kind == Utf8::incomplete) return unit.length;
      text += kReplacementCharacter;
      copied = at + unit.length;
    }
    at += unit.length;
  }
  text += bytes.substr(copied);
  return 0;
}

std::string replace_invalid(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  if (append_text(bytes, text) > 0) text += kReplacementCharacter;
  return text;
}

std::string nfc(std::string_view text) {
  // The first code point that normalization can change or combine is U+0300, whose first byte is 0xCC.
  const auto is_plain = [](char c) { return static_cast<unsigned char>(c) < 0xCC; };
  if (std::all_of(text.begin(), text.end(), is_plain)) return std::string(text);

  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  std::vector<int32_t> points;
  points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    int32_t point;
    at += static_cast<size_t>(utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &point));
    int32_t parts[4];  // no canonical decomposition is longer
    const auto n = utf8proc_decompose_char(point, parts, std::size(parts), UTF8PROC_DECOMPOSE, nullptr);
    points.insert(points.end(), parts, parts + n);
  }
  reorder_marks(points);

  std::string out;
  out.reserve(text.size());
  for (auto first = points.begin(); first != points.end();) {
    // utf8proc takes U+11A7 for an empty trailing consonant and swallows it. As it joins nothing before it, a part of
    // its own starts there.
    const auto last = std::find(first + 1, points.end(), 0x11A7);
    const auto composed = utf8proc_normalize_utf32(&*first, last - first, kNfcOptions);
    for (auto point = first; point != first + composed; ++point) {
      utf8proc_uint8_t encoded[4];
      const auto n = utf8proc_encode_char(*point, encoded);
      out.append(reinterpret_cast<const char*>(encoded), static_cast<size_t>(n));
    }
    first = last;
  }
  return out;
}

}  // namespace deltaring
