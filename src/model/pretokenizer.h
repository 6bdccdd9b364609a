// Cuts normalized text into the words that byte-pair encoding works on.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

namespace deltaring {

// The published pre-tokenizer regexes. They differ in one thing: in Qwen3.5 combining marks join letters.
inline constexpr std::string_view kQwen35Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen3NextRegex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

class PreTokenizer {
 public:
  // `regex` is one of the two above; throws Error(unsupported) quoting any other. `where` names the file in messages.
  PreTokenizer(std::string_view regex, std::string_view where);
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  // The words of valid UTF-8 `text`, in order and without gaps; they point into `text`.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  struct Matcher;
  std::unique_ptr<const Matcher> matcher_;
};

}  // namespace deltaring
