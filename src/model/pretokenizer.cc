#include "model/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <new>
#include <string>

#include "base/error.h"
#include "model/json_fields.h"

namespace deltaring {

namespace {

// Unicode White_Space, what \s means where these regexes are defined. PCRE2's own \s also takes U+180E.
constexpr std::string_view kWhiteSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// The regex with \s and \S written out. \S stands outside of classes only.
std::string spell_out_white_space(std::string_view regex) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < regex.size(); i++) {
    const std::string_view escape = regex.substr(i, 2);
    if (escape == R"(\s)" || escape == R"(\S)") {
      out += in_class ? std::string(kWhiteSpace) : fmt::format("[{}{}]", escape[1] == 'S' ? "^" : "", kWhiteSpace);
      i++;
      continue;
    }
    if (regex[i] == '[') in_class = true;
    if (regex[i] == ']') in_class = false;
    out += regex[i];
  }
  return out;
}

template <auto kFree>
struct Free {
  void operator()(auto* p) const { kFree(p); }
};
using Code = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;

}  // namespace

// Both parts are read only while matching, so threads may share them.
struct PreTokenizer::Matcher {
  Code code;
  MatchContext context;
};

PreTokenizer::PreTokenizer(std::string_view regex, std::string_view where) {
  if (regex != kQwen35Regex && regex != kQwen3NextRegex) {
    fail(ErrorKind::unsupported,
         "{}: unknown pre-tokenizer regex {}; supported are those of Qwen3.5, {}, and of Qwen3-Next, {}", where,
         shown(regex), kQwen35Regex, kQwen3NextRegex);
  }
  const std::string pattern = spell_out_white_space(regex);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto matcher = std::make_unique<Matcher>();
  matcher->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                    PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error, &offset, nullptr));
  matcher->context.reset(pcre2_match_context_create(nullptr));
  if (!matcher->code || !matcher->context) {
    fail(ErrorKind::unsupported, "PCRE2 does not compile the regex of {} (error {} at {}); a PCRE2 with Unicode does",
         where, error, offset);
  }
  // A run of a million spaces is one match with as many steps back: no limit but the text's own length.
  pcre2_set_match_limit(matcher->context.get(), UINT32_MAX);
  pcre2_set_depth_limit(matcher->context.get(), UINT32_MAX);
  pcre2_set_heap_limit(matcher->context.get(), UINT32_MAX);
  pcre2_jit_compile(matcher->code.get(), PCRE2_JIT_COMPLETE);  // without it pcre2_match interprets: same results
  matcher_ = std::move(matcher);
}

PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  const MatchData match(pcre2_match_data_create(1, nullptr));
  if (!match) throw std::bad_alloc();
  std::vector<std::string_view> words;
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match.get());
  for (size_t at = 0; at < text.size(); at = span[1]) {
    const int rc = pcre2_match(matcher_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                               PCRE2_NO_UTF_CHECK, match.get(), matcher_->context.get());
    // Every code point is in a class of some alternative, so a match starts at `at` unless memory ran out.
    if (rc < 0 || span[0] != at || span[1] <= at) {
      fail(ErrorKind::out_of_memory, "the pre-tokenizer stopped at byte {} of {} (PCRE2 error {}): shorter texts work",
           at, text.size(), rc);
    }
    words.push_back(text.substr(at, span[1] - at));
  }
  return words;
}

}  // namespace deltaring
