#include "model/tokenizer.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "model/bpe.h"
#include "model/json_fields.h"
#include "model/pretokenizer.h"
#include "model/tokenizer_file.h"
#include "model/utf8.h"

namespace deltaring {

namespace {

// Keeps every position inside 31 bits: U+FFFD triples a byte and NFC at most triples a text.
constexpr size_t kMaxTextBytes = size_t{256} << 20;
static_assert(kMaxTextBytes * 9 <= size_t{UINT32_MAX});

}  // namespace

struct Tokenizer::Tables {
  std::vector<std::string> tokens;                         // raw bytes by id
  std::unordered_map<std::string_view, int32_t> by_bytes;  // keys point into `tokens`
  std::vector<bool> special;                               // by id
  std::array<std::vector<int32_t>, 256> added_by_byte;     // ids of added tokens by first byte, longest first
  PreTokenizer pre_tokenizer;
  Bpe bpe;

  Tables(TokenizerFile file, const std::string& where);
  // Id of the longest added token at the start of `rest`, -1 for none.
  int32_t added_at(std::string_view rest) const;
  // Appends the ids of valid UTF-8 without added tokens.
  void encode_plain(std::string_view text, Bpe::Workspace& workspace, std::vector<int32_t>& ids) const;
};

Tokenizer::Tables::Tables(TokenizerFile file, const std::string& where)
    : tokens(std::move(file.tokens)),
      special(tokens.size()),
      pre_tokenizer(file.regex, where),
      bpe(file.byte_ids, file.merges) {
  by_bytes.reserve(tokens.size());
  // An added token goes before a token of the vocabulary with the same bytes.
  for (const AddedToken& token : file.added) by_bytes.emplace(tokens[token.id], token.id);
  for (size_t id = 0; id < tokens.size(); id++) by_bytes.emplace(tokens[id], static_cast<int32_t>(id));
  for (const AddedToken& token : file.added) {
    special[token.id] = token.special;
    added_by_byte[static_cast<unsigned char>(token.text.front())].push_back(token.id);
  }
  for (auto& ids : added_by_byte) {
    std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return tokens[a].size() > tokens[b].size(); });
  }
}

int32_t Tokenizer::Tables::added_at(std::string_view rest) const {
  for (const int32_t id : added_by_byte[static_cast<unsigned char>(rest.front())]) {
    if (rest.starts_with(tokens[id])) return id;
  }
  return -1;
}

void Tokenizer::Tables::encode_plain(std::string_view text, Bpe::Workspace& workspace,
                                     std::vector<int32_t>& ids) const {
  const std::string normalized = nfc(text);
  for (const std::string_view word : pre_tokenizer.split(normalized)) bpe.encode(word, workspace, ids);
}

Tokenizer::Tokenizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}

Tokenizer Tokenizer::load(const std::filesystem::path& tokenizer_json) {
  std::error_code ignored;
  if (!std::filesystem::exists(tokenizer_json, ignored)) {
    fail(ErrorKind::not_found,
         "{} holds no tokenizer.json, which a model folder has beside config.json and model.safetensors; "
         "save_pretrained of a transformers tokenizer writes one",
         tokenizer_json.parent_path().string());
  }
  return parse(read_text(tokenizer_json), tokenizer_json.string());
}

Tokenizer Tokenizer::parse(std::string_view json_text, const std::string& where) {
  return Tokenizer(std::make_shared<const Tables>(parse_tokenizer_file(json_text, where), where));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  check(text.size() <= kMaxTextBytes, "a text of {} bytes to encode; at most {}, longer ones are cut by the caller",
        text.size(), kMaxTextBytes);
  const std::string valid = replace_invalid(text);
  const std::string_view view = valid;
  std::vector<int32_t> ids;
  Bpe::Workspace workspace;
  size_t plain = 0;  // start of the text before the next added token
  for (size_t at = 0; at < view.size();) {
    const int32_t id = tables_->added_at(view.substr(at));
    if (id < 0) {
      at++;
      continue;
    }
    const size_t end = at + tables_->tokens[id].size();
    // A special token taken as text still hides the added tokens inside of it.
    if (parse_special || !tables_->special[id]) {
      tables_->encode_plain(view.substr(plain, at - plain), workspace, ids);
      ids.push_back(id);
      plain = end;
    }
    at = end;
  }
  tables_->encode_plain(view.substr(plain), workspace, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string raw;
  for (const int32_t id : ids) {
    if (!skip_special || !is_special(id)) raw += bytes(id);
  }
  return replace_invalid(raw);
}

int32_t Tokenizer::size() const { return static_cast<int32_t>(tables_->tokens.size()); }

std::optional<int32_t> Tokenizer::find(std::string_view token) const {
  const auto it = tables_->by_bytes.find(token);
  return it == tables_->by_bytes.end() ? std::nullopt : std::optional(it->second);
}

std::string_view Tokenizer::bytes(int32_t id) const {
  return id >= 0 && id < size() ? std::string_view(tables_->tokens[id]) : std::string_view();
}

bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < size() && tables_->special[id]; }

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

std::string StreamDecoder::push(int32_t id) {
  if (skip_special_ && tokenizer_.is_special(id)) return {};
  pending_ += tokenizer_.bytes(id);
  std::string text;
  const size_t kept = append_text(pending_, text);
  pending_.erase(0, pending_.size() - kept);
  return text;
}

std::string StreamDecoder::finish() {
  return std::exchange(pending_, {}).empty() ? std::string() : std::string(kReplacementCharacter);
}

}  // namespace deltaring
