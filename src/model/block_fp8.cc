#include "model/block_fp8.h"

#include <algorithm>

#include "base/error.h"
#include "model/json_fields.h"
#include "ops/linear.h"

namespace deltaring {

using nlohmann::json;

namespace {

std::string_view without_prefix(std::string_view name) {
  for (const std::string_view prefix : {"model.", "language_model.", "model."}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  return name;
}

[[noreturn]] void refuse(const JsonFields& fields, const char* key, const std::string& value, const char* works) {
  fail(ErrorKind::unsupported,
       "{}: {} is {}, supported: {}; weights are float8 e4m3 with a scale for each block of 128 x 128, or float32, "
       "bfloat16 and float16 without a quantization_config",
       fields.where(), key, value, works);
}

void demand_text(const JsonFields& fields, const char* key, const char* fallback, const char* works) {
  const std::string value = fields.text_or(key, fallback);
  if (value != works) refuse(fields, key, shown(value), works);
}

}  // namespace

bool BlockFp8::converts(std::string_view tensor) const {
  if (tensor.ends_with(".weight")) tensor.remove_suffix(std::string_view(".weight").size());
  const std::string_view module = without_prefix(tensor);
  return std::ranges::none_of(modules_to_not_convert, [module](const std::string& entry) {
    const std::string_view name = without_prefix(entry);
    return !name.empty() &&
           (module.ends_with(name) || (module.starts_with(name) && module.substr(name.size()).starts_with('.')));
  });
}

BlockFp8 parse_block_fp8(const JsonFields& fields) {
  demand_text(fields, "quant_method", "not given", "fp8");
  demand_text(fields, "fmt", "e4m3", "e4m3");
  demand_text(fields, "activation_scheme", "dynamic", "dynamic");
  demand_text(fields, "scale_fmt", "float", "float");
  demand_text(fields, "expert_dtype", "fp8", "fp8");
  const json* block = fields.find("weight_block_size");
  if (!block || *block != json({WeightMatrix::kBlock, WeightMatrix::kBlock})) {
    refuse(fields, "weight_block_size", block ? shown_json(*block) : "not given", "[128, 128]");
  }
  BlockFp8 fp8;
  const char* key = fields.find("modules_to_not_convert") ? "modules_to_not_convert" : "ignored_layers";
  const json* modules = fields.find(key);
  if (!modules) return fp8;
  if (!modules->is_array()) {
    fail(ErrorKind::corrupt, "{}: {} is {}, expected a list of module names", fields.where(), key,
         shown_json(*modules));
  }
  for (const json& name : *modules) {
    if (!name.is_string()) {
      fail(ErrorKind::corrupt, "{}: {} holds {}, expected names of modules", fields.where(), key, shown_json(name));
    }
    fp8.modules_to_not_convert.push_back(name.get<std::string>());
  }
  return fp8;
}

std::string scales_name(const std::string& tensor) { return tensor + "_scale_inv"; }

}  // namespace deltaring
