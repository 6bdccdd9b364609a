#include "model/generation_config.h"

#include "model/json_fields.h"

namespace deltaring {

GenerationConfig parse_generation_config(std::string_view text, const std::string& where, const ModelConfig& model) {
  const nlohmann::json document = parse_json(text, where);
  const JsonFields fields(document, where);
  GenerationConfig config;
  config.eos_token_id = fields.integers("eos_token_id", 0, model.vocab_size - 1);
  if (config.eos_token_id.empty()) config.eos_token_id = model.eos_token_id;
  config.do_sample = fields.boolean_or("do_sample", config.do_sample);
  config.temperature = fields.number_or("temperature", config.temperature, -1e-300, 1e6);
  config.top_k = fields.integer_or("top_k", config.top_k, 0, INT32_MAX);
  config.top_p = fields.number_or("top_p", config.top_p, 0, 1);
  return config;
}

GenerationConfig load_generation_config(const std::filesystem::path& folder, const ModelConfig& model) {
  check_model_folder(folder);
  const std::filesystem::path path = folder / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {.eos_token_id = model.eos_token_id};
  return parse_generation_config(read_text(path), path.string(), model);
}

}  // namespace deltaring
