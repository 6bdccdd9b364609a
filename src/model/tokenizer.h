// Text to token ids and back, as the Python package `tokenizers` does it for the tokenizer.json of the Qwen family.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltaring {

// Immutable and cheap to copy; copies share the tables. Every method may be called from several threads.
class Tokenizer {
 public:
  // Throws Error(not_found) for a missing file, Error(unsupported) naming whatever the file asks for and this class
  // does not do, Error(corrupt) naming what is missing or contradicts itself.
  static Tokenizer load(const std::filesystem::path& tokenizer_json);
  // The same for the text of the file; `where` stands for its name in messages.
  static Tokenizer parse(std::string_view json_text, const std::string& where);

  // Ids of `text`; invalid UTF-8 becomes U+FFFD. With parse_special false the text of a special token is plain text;
  // other added tokens, such as <think>, are recognised always. Throws Error(invalid_argument) above 256 MiB.
  std::vector<int32_t> encode(std::string_view text, bool parse_special = true) const;

  // Text of `ids`, always valid UTF-8: bytes that form no code point become U+FFFD. skip_special leaves out special
  // tokens. Ids that are no token, such as the padding rows of the logits, stand for nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // Number of ids, which are 0 to size() - 1. Logits at size() and above are padding rows.
  int32_t size() const;
  // Id of the token with these raw bytes ("\n", "<|im_end|>").
  std::optional<int32_t> find(std::string_view token) const;
  // Raw bytes of one token, of an added token its text; empty for an id that is no token.
  std::string_view bytes(int32_t id) const;
  bool is_special(int32_t id) const;

 private:
  struct Tables;
  explicit Tokenizer(std::shared_ptr<const Tables> tables);

  std::shared_ptr<const Tables> tables_;
};

// Text of ids that arrive one by one. The pieces of push and finish, put together, are decode() of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special = false);

  // The text that `id` completes: whole code points only. The start of a code point is kept for the next call.
  std::string push(int32_t id);
  // U+FFFD when an incomplete code point is left, else nothing. The decoder is then as new.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  bool skip_special_;
  std::string pending_;  // at most 3 bytes
};

}  // namespace deltaring
