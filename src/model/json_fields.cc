#include "model/json_fields.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"

namespace deltaring {

using nlohmann::json;

namespace {

constexpr size_t kShownLength = 160;
constexpr size_t kMaxDepth = 64;

// Watches the events of the parser for what the JSON library lets pass.
class Strictness {
 public:
  explicit Strictness(const std::string& where) : where_(where) {}

  bool operator()(json::parse_event_t event, const json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (keys_.size() == kMaxDepth) fail(ErrorKind::corrupt, "{}: JSON nested deeper than {}", where_, kMaxDepth);
        keys_.emplace_back();
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        keys_.pop_back();
        break;
      case json::parse_event_t::key:
        if (!keys_.back().insert(value.get<std::string>()).second) {
          fail(ErrorKind::corrupt, "{}: the key {} occurs twice in one object", where_, shown_json(value));
        }
        break;
      case json::parse_event_t::value:
        break;
    }
    return true;
  }

 private:
  const std::string& where_;
  std::vector<std::set<std::string>> keys_;  // one set per open object or array
};

// `byte` counts from 1, as the parser's does.
std::string what_is_wrong(std::string_view text, size_t byte) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return "it is empty";
  if (byte == 0 || byte > text.size()) return "it ends in the middle";
  const auto c = static_cast<unsigned char>(text[byte - 1]);
  const auto lines = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(byte) - 1, '\n');
  const std::string found = c > 0x20 && c < 0x7f ? fmt::format("'{}'", text[byte - 1]) : fmt::format("0x{:02x}", c);
  const std::string where = text.find('\n') == std::string_view::npos ? "" : fmt::format(", in line {}", lines + 1);
  return fmt::format("{} cannot stand there{}", found, where);
}

}  // namespace

std::string shown(std::string_view text) {
  std::string out(text.substr(0, kShownLength));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (text.size() > kShownLength) out += "...";
  return out;
}

std::string shown_json(const json& value) { return shown(value.dump(-1, ' ', false, json::error_handler_t::replace)); }

json parse_json(std::string_view text, const std::string& where, std::string_view works) {
  Strictness strictness(where);
  try {
    return json::parse(text, [&](int, json::parse_event_t event, json& value) { return strictness(event, value); });
  } catch (const json::parse_error& e) {
    fail(ErrorKind::corrupt, "{}: not valid JSON at byte {} of {}: {}; {}", where, e.byte, text.size(),
         what_is_wrong(text, e.byte), works);
  } catch (const json::exception& e) {
    const std::string_view what = e.what();  // "[json.exception.kind.406] number overflow parsing '1e999'"
    fail(ErrorKind::corrupt, "{}: not usable JSON: {}; {}", where, shown(what.substr(what.find("] ") + 2)), works);
  }
}

std::string read_text(const std::filesystem::path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void check_file(std::string_view flag, const std::filesystem::path& path, std::string_view works) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_regular_file(status)) return;
  const std::string found = !std::filesystem::status_known(status)  ? "cannot be looked at: " + error.message()
                            : !std::filesystem::exists(status)      ? "there is no such file"
                            : std::filesystem::is_directory(status) ? "is a folder"
                                                                    : "is a pipe or a device, no file on a disk";
  fail(ErrorKind::invalid_argument, "{} {}: {}; {}", flag, path.string(), found, works);
}

void check_model_folder(const std::filesystem::path& folder) {
  constexpr const char* kHolds =
      "a model folder holds config.json, tokenizer.json and model.safetensors (or model.safetensors.index.json with "
      "its "
      "shards)";
  std::error_code ignored;  // a folder that cannot be looked at counts as missing
  const auto status = std::filesystem::status(folder, ignored);
  if (!std::filesystem::exists(status)) {
    fail(ErrorKind::not_found, "model folder {} does not exist; {}", folder.string(), kHolds);
  }
  if (!std::filesystem::is_directory(status)) {
    fail(ErrorKind::invalid_argument, "{} is a file, a model is given as a folder; {}", folder.string(), kHolds);
  }
}

JsonFields::JsonFields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) fail(ErrorKind::corrupt, "{}: expected an object, found {}", where_, shown_json(object));
}

const json* JsonFields::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const json& JsonFields::require(const char* key) const {
  const json* value = find(key);
  if (!value) fail(ErrorKind::corrupt, "{}: {} is missing", where_, key);
  return *value;
}

int64_t JsonFields::whole(const char* key, const json& value, int64_t low, int64_t high) const {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  const int64_t n = fits ? value.get<int64_t>() : 0;
  if (!fits || n < low || n > high) {
    fail(ErrorKind::corrupt, "{}: {} is {}, expected a whole number from {} to {}", where_, key, shown_json(value), low,
         high);
  }
  return n;
}

int64_t JsonFields::integer(const char* key, int64_t low, int64_t high) const {
  return whole(key, require(key), low, high);
}

int64_t JsonFields::integer_or(const char* key, int64_t fallback, int64_t low, int64_t high) const {
  return find(key) ? integer(key, low, high) : fallback;
}

std::vector<int64_t> JsonFields::integers(const char* key, int64_t low, int64_t high) const {
  std::vector<int64_t> list;
  const json* value = find(key);
  if (value && !value->is_array()) return {whole(key, *value, low, high)};
  if (value) {
    for (const json& entry : *value) list.push_back(whole(key, entry, low, high));
  }
  return list;
}

double JsonFields::number(const char* key, double low, double high) const {
  const json& value = require(key);
  const double x = value.is_number() ? value.get<double>() : NAN;
  if (!(x > low && x <= high)) {
    fail(ErrorKind::corrupt, "{}: {} is {}, expected a number above {} and at most {}", where_, key, shown_json(value),
         low, high);
  }
  return x;
}

double JsonFields::number_or(const char* key, double fallback, double low, double high) const {
  return find(key) ? number(key, low, high) : fallback;
}

bool JsonFields::boolean_or(const char* key, bool fallback) const {
  const json* value = find(key);
  if (value && !value->is_boolean()) {
    fail(ErrorKind::corrupt, "{}: {} is {}, expected true or false", where_, key, shown_json(*value));
  }
  return value ? value->get<bool>() : fallback;
}

std::string JsonFields::text_or(const char* key, const std::string& fallback) const {
  const json* value = find(key);
  if (value && !value->is_string()) {
    fail(ErrorKind::corrupt, "{}: {} is {}, expected a string", where_, key, shown_json(*value));
  }
  return value ? value->get<std::string>() : fallback;
}

}  // namespace deltaring
