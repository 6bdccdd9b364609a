#include "model/tokenizer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "model/json_fields.h"
#include "model/utf8.h"

namespace deltaring {

using nlohmann::json;

namespace {

using IdMap = std::unordered_map<std::string_view, int32_t>;

struct Rule {
  const char* pointer;
  const char* works;           // as JSON text; null stands for an absent value too
  const char* also = nullptr;  // a second value with the same effect
};

// Values that change ids or text and have one implementation here.
constexpr Rule kRules[] = {
    {"/version", "\"1.0\""},
    {"/truncation", "null"},
    {"/padding", "null"},
    {"/normalizer/type", "\"NFC\""},
    {"/pre_tokenizer/type", "\"Sequence\""},
    {"/pre_tokenizer/pretokenizers/0/type", "\"Split\""},
    {"/pre_tokenizer/pretokenizers/0/behavior", "\"Isolated\""},
    {"/pre_tokenizer/pretokenizers/0/invert", "false"},
    {"/pre_tokenizer/pretokenizers/0/pattern/String", "null"},
    {"/pre_tokenizer/pretokenizers/1/type", "\"ByteLevel\""},
    {"/pre_tokenizer/pretokenizers/1/add_prefix_space", "false"},
    {"/pre_tokenizer/pretokenizers/1/use_regex", "false"},
    {"/pre_tokenizer/pretokenizers/2", "null"},
    {"/post_processor/type", "\"ByteLevel\"", "null"},
    {"/decoder/type", "\"ByteLevel\""},
    {"/model/type", "\"BPE\""},
    {"/model/dropout", "null"},
    {"/model/unk_token", "null"},
    {"/model/continuing_subword_prefix", "null", "\"\""},
    {"/model/end_of_word_suffix", "null", "\"\""},
    {"/model/fuse_unk", "false", "null"},
    {"/model/byte_fallback", "false", "null"},
    {"/model/ignore_merges", "false", "null"},
};

void check_rules(const json& root, const std::string& where) {
  for (const Rule& rule : kRules) {
    const json::json_pointer pointer(rule.pointer);
    const json value = root.contains(pointer) ? root.at(pointer) : json();
    const std::string found = shown_json(value);
    if (found == rule.works || (rule.also && found == rule.also)) continue;
    fail(ErrorKind::unsupported, "{}: {} is {}; supported is {}", where, rule.pointer + 1, found, rule.works);
  }
}

void check_keys(const json& object, std::initializer_list<std::string_view> known, const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    fail(ErrorKind::unsupported, "{}: unknown key {}; supported are {}", where, shown(key), fmt::join(known, ", "));
  }
}

const json& collection(const JsonFields& fields, const char* key, json::value_t type) {
  const json* value = fields.find(key);
  if (!value) fail(ErrorKind::corrupt, "{}: {} is missing", fields.where(), key);
  if (value->type() != type) {
    fail(ErrorKind::corrupt, "{}: {} is {}, expected an {}", fields.where(), key, shown_json(*value),
         type == json::value_t::array ? "array" : "object");
  }
  return *value;
}

// The table of GPT-2: the printable bytes of Latin-1 stand for themselves, the others for U+0100, U+0101 and so on.
bool stands_for_itself(int byte) { return (byte > 32 && byte < 127) || (byte > 160 && byte < 256 && byte != 173); }

// Code point -> byte, -1 for code points that stand for none.
std::vector<int> byte_of_code_point() {
  std::vector<int> bytes(0x180, -1);
  int next = 0x100;
  for (int byte = 0; byte < 256; byte++) bytes[stands_for_itself(byte) ? byte : next++] = byte;
  return bytes;
}

// The bytes that a token of the vocabulary stands for, nothing when it uses a character outside of the table.
std::optional<std::string> token_bytes(std::string_view token, const std::vector<int>& byte_of) {
  std::string bytes;
  while (!token.empty()) {
    const size_t length = first_unit(token).length;
    const auto c = [&](size_t i) { return static_cast<unsigned char>(token[i]); };
    if (length > 2) return std::nullopt;
    const size_t point = length == 1 ? c(0) : (c(0) & 0x1F) << 6 | (c(1) & 0x3F);
    if (point >= byte_of.size() || byte_of[point] < 0) return std::nullopt;
    bytes += static_cast<char>(byte_of[point]);
    token.remove_prefix(length);
  }
  return bytes;
}

IdMap read_vocabulary(const json& vocab, const std::string& where) {
  IdMap ids;
  ids.reserve(vocab.size());
  for (auto it = vocab.begin(); it != vocab.end(); ++it) {
    const json& id = it.value();
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      fail(ErrorKind::corrupt, "{}: the id of {} is {}, expected a whole number", where, shown(it.key()),
           shown_json(id));
    }
    ids.emplace(it.key(), id.get<int32_t>());
  }
  return ids;
}

// A merge is ["a", "b"] or "a b".
std::pair<std::string_view, std::string_view> merge_parts(const json& merge, const std::string& where) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
  }
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  fail(ErrorKind::corrupt, "{}: {} is not a merge; expected [\"a\", \"b\"] or \"a b\"", where, shown_json(merge));
}

std::vector<BpeMerge> read_merges(const json& list, const IdMap& vocabulary, const std::string& where) {
  std::vector<BpeMerge> merges;
  merges.reserve(list.size());
  for (const json& item : list) {
    const auto [left, right] = merge_parts(item, where);
    const auto id_of = [&](std::string_view token) {
      const auto it = vocabulary.find(token);
      if (it == vocabulary.end()) {
        fail(ErrorKind::corrupt, "{}: merge {} needs the token {}, which vocab lacks", where, shown_json(item),
             shown(token));
      }
      return it->second;
    };
    const std::string merged = std::string(left).append(right);
    merges.push_back({.left = id_of(left), .right = id_of(right), .merged = id_of(merged)});
  }
  return merges;
}

std::vector<AddedToken> read_added(const json& list, const IdMap& vocabulary, const std::string& where) {
  std::vector<AddedToken> added;
  std::set<std::string> seen;
  for (const json& item : list) {
    const JsonFields fields(item, fmt::format("{}: added token {}", where, shown_json(item)));
    check_keys(item, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}, fields.where());
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
      if (fields.boolean_or(flag, false)) {
        fail(ErrorKind::unsupported, "{}: {} is true; supported is false", fields.where(), flag);
      }
    }
    AddedToken token{.id = static_cast<int32_t>(fields.integer("id", 0, INT32_MAX)),
                     .special = fields.boolean_or("special", false),
                     .text = fields.text_or("content", "")};
    if (token.text.empty()) fail(ErrorKind::corrupt, "{}: content is missing or empty", fields.where());
    if (!seen.insert(token.text).second) fail(ErrorKind::corrupt, "{}: listed twice", fields.where());
    const auto known = vocabulary.find(token.text);
    if (known != vocabulary.end() && known->second != token.id) {
      fail(ErrorKind::corrupt, "{}: its id in vocab is {}", fields.where(), known->second);
    }
    added.push_back(std::move(token));
  }
  return added;
}

// The raw bytes of every token by id. Ids are dense, so their number bounds them.
void fill_tokens(TokenizerFile& file, const IdMap& vocabulary, const std::string& where) {
  const auto is_new = [&](const AddedToken& token) { return !vocabulary.contains(token.text); };
  const auto count = vocabulary.size() + std::count_if(file.added.begin(), file.added.end(), is_new);
  std::vector<bool> taken(count);
  file.tokens.resize(count);
  const auto place = [&](size_t id, std::string_view name, std::string bytes) {
    if (id >= count) {
      fail(ErrorKind::corrupt, "{}: the id of {} is {}; {} tokens have the ids 0 to {}", where, shown(name), id, count,
           count - 1);
    }
    if (taken[id]) {
      fail(ErrorKind::corrupt, "{}: the id {} belongs to {} and {}", where, id, shown(file.tokens[id]), shown(name));
    }
    taken[id] = true;
    file.tokens[id] = std::move(bytes);
  };

  const std::vector<int> byte_of = byte_of_code_point();
  file.byte_ids.fill(-1);
  for (const auto& [token, id] : vocabulary) {
    const auto bytes = token_bytes(token, byte_of);
    if (bytes && bytes->size() == 1) file.byte_ids[static_cast<unsigned char>(bytes->front())] = id;
    place(id, token, bytes.value_or(std::string(token)));
  }
  for (const AddedToken& token : file.added) {
    if (is_new(token)) place(token.id, token.text, token.text);
    file.tokens[token.id] = token.text;
  }
  const auto missing = std::find(file.byte_ids.begin(), file.byte_ids.end(), -1);
  if (missing != file.byte_ids.end()) {
    fail(ErrorKind::corrupt, "{}: vocab has no token for the byte {:#04x}", where, missing - file.byte_ids.begin());
  }
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view json_text, const std::string& where) {
  const json root = parse_json(json_text, where);
  const JsonFields fields(root, where);
  check_keys(root,
             {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
              "decoder", "model"},
             where);
  const json& model_object = collection(fields, "model", json::value_t::object);
  const JsonFields model(model_object, where + ": model");
  check_keys(model_object,
             {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"},
             model.where());
  check_rules(root, where);

  TokenizerFile file;
  const json::json_pointer regex("/pre_tokenizer/pretokenizers/0/pattern/Regex");
  if (!root.contains(regex) || !root[regex].is_string()) {
    fail(ErrorKind::corrupt, "{}: pre_tokenizer: the Split has no pattern.Regex", where);
  }
  file.regex = root[regex].get<std::string>();
  const IdMap vocabulary = read_vocabulary(collection(model, "vocab", json::value_t::object), model.where());
  file.merges = read_merges(collection(model, "merges", json::value_t::array), vocabulary, model.where());
  file.added = read_added(collection(fields, "added_tokens", json::value_t::array), vocabulary, where);
  fill_tokens(file, vocabulary, where);
  return file;
}

}  // namespace deltaring
