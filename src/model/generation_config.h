// How a model wants to be sampled by default: generation_config.json.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace deltaring {

struct GenerationConfig {
  std::vector<int64_t> eos_token_id;  // generation stops after any of these; each in [0, vocab_size)
  bool do_sample = true;              // false: greedy
  double temperature = 1;             // >= 0; 0 is greedy
  int64_t top_k = 0;                  // 0: off
  double top_p = 1;                   // in (0, 1]; 1: off
};

// `text` is the content of a generation_config.json, `where` names it in messages. What it does not give keeps the
// default above; eos_token_id then comes from `model`. Throws Error(corrupt) for bad JSON and impossible values.
GenerationConfig parse_generation_config(std::string_view text, const std::string& where, const ModelConfig& model);

// The same for folder/generation_config.json, which may be missing.
GenerationConfig load_generation_config(const std::filesystem::path& folder, const ModelConfig& model);

}  // namespace deltaring
