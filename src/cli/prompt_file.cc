#include "cli/prompt_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "model/json_fields.h"

namespace deltaring::cli {

namespace {

using nlohmann::json;

constexpr const char* kRow = R"({"question_id": "1", "category": "coding", "turns": ["Write a sort."]})";

BenchPrompt prompt_of(const json& row, const std::string& where, size_t number) {
  const JsonFields fields(row, where);
  const json* turns = fields.find("turns");
  if (!turns || !turns->is_array() || turns->empty() || !turns->front().is_string() ||
      turns->front().get_ref<const std::string&>().empty()) {
    fail(ErrorKind::corrupt, "{}: turns is {}; a list of texts works: {}", where,
         turns ? shown_json(*turns) : "not there", kRow);
  }
  BenchPrompt prompt{.id = std::to_string(number),
                     .category = fields.text_or("category", "all"),
                     .text = turns->front().get<std::string>()};
  if (prompt.text.starts_with("FULL BENCHMARK DATA SHOULD BE FETCHED")) {
    fail(ErrorKind::corrupt,
         "{}: the public rows hold no text; Model-Optimizer's prepare_data.py --dataset speed fetches it", where);
  }
  if (const json* id = fields.find("question_id")) prompt.id = id->is_string() ? id->get<std::string>() : id->dump();
  return prompt;
}

}  // namespace

std::vector<BenchPrompt> read_prompts(const std::filesystem::path& path) {
  const std::string works = fmt::format("a line like this works: {}", kRow);
  check_file("--prompts", path, "in a file " + works);
  const std::string text = read_text(path);
  std::vector<BenchPrompt> prompts;
  if (const size_t first = text.find_first_not_of(" \t\r\n"); first != std::string::npos && text[first] == '[') {
    for (const json& row : parse_json(text, path.string(), works)) {
      const size_t number = prompts.size() + 1;
      prompts.push_back(prompt_of(row, fmt::format("{}, row {}", path.string(), number), number));
    }
  } else {
    size_t number = 0;
    for (size_t begin = 0; begin < text.size(); number++) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line(text.data() + begin, end - begin);
      begin = end + 1;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const std::string where = fmt::format("{}, line {}", path.string(), number + 1);
      prompts.push_back(prompt_of(parse_json(line, where, works), where, number + 1));
    }
  }
  check(!prompts.empty(), "--prompts {}: no prompt in it; {}", path.string(), works);
  return prompts;
}

}  // namespace deltaring::cli
