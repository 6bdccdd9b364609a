// Strict reading of JSON that comes from outside. Included by .cc files only: the JSON library stays out of headers.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace deltaring {

// Text or JSON from a file as it may stand in a message: control characters replaced, cut to a readable length.
std::string shown(std::string_view text);
std::string shown_json(const nlohmann::json& value);

// Throws Error(corrupt) naming `where` and the byte offset for text that is not JSON, then `works`; for a key that
// occurs twice in one object and for nesting deeper than 64.
nlohmann::json parse_json(std::string_view text, const std::string& where,
                          std::string_view works = "a whole copy of the file works");

// The whole file. Throws Error(not_found) when it cannot be opened.
std::string read_text(const std::filesystem::path& path);

// Throws Error naming `flag` unless `path`, its value, is a file, saying what it is instead and then `works`.
void check_file(std::string_view flag, const std::filesystem::path& path, std::string_view works);

// Throws Error unless `folder` is a folder, saying what a model folder holds.
void check_model_folder(const std::filesystem::path& folder);

// Typed look-ups in one object. A key that is absent or null counts as not given. Everything throws Error(corrupt)
// naming `where`, the key, the value found and what works.
class JsonFields {
 public:
  // Keeps a reference to `object`. Throws when it is not an object.
  JsonFields(const nlohmann::json& object, std::string where);

  const std::string& where() const { return where_; }
  // Null when not given.
  const nlohmann::json* find(const char* key) const;

  // A whole number in [low, high]; without a fallback the key must be given.
  int64_t integer(const char* key, int64_t low, int64_t high) const;
  int64_t integer_or(const char* key, int64_t fallback, int64_t low, int64_t high) const;
  // One whole number or a list of them, each in [low, high]; empty when not given.
  std::vector<int64_t> integers(const char* key, int64_t low, int64_t high) const;
  // A number in (low, high].
  double number(const char* key, double low, double high) const;
  double number_or(const char* key, double fallback, double low, double high) const;
  bool boolean_or(const char* key, bool fallback) const;
  std::string text_or(const char* key, const std::string& fallback) const;

 private:
  const nlohmann::json& require(const char* key) const;
  int64_t whole(const char* key, const nlohmann::json& value, int64_t low, int64_t high) const;

  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace deltaring
