// Prompt files in the format of SPEED-Bench: a JSON object a line, or one array of them.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace deltaring::cli {

struct BenchPrompt {
  std::string id;        // question_id, else the line's number
  std::string category;  // "all" where there is none
  std::string text;      // the first turn
};

// {"question_id": .., "category": "coding", "turns": ["..", ..]}; other keys are ignored. Throws Error(corrupt) naming
// the line and what works for anything else, for files without prompts and for rows whose text has yet to be fetched.
std::vector<BenchPrompt> read_prompts(const std::filesystem::path& path);

}  // namespace deltaring::cli
