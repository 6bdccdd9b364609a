#include "model/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "model/json_fields.h"

namespace deltaring {

using nlohmann::json;

namespace {

[[noreturn]] void refuse(const JsonFields& rope, const char* key, const std::string& value, const char* works) {
  fail(ErrorKind::unsupported, "{}: {} is {}, which is not supported here; supported: {}", rope.where(), key, value,
       works);
}

YarnScaling parse_yarn(const JsonFields& rope, int64_t max_position_embeddings) {
  const char* original = "original_max_position_embeddings";
  const bool known = max_position_embeddings > 0;
  YarnScaling yarn;
  yarn.original_max_position_embeddings = known ? rope.integer_or(original, max_position_embeddings, 1, kMaxPositions)
                                                : rope.integer(original, 1, kMaxPositions);
  const double trained = static_cast<double>(yarn.original_max_position_embeddings);
  yarn.factor = known ? rope.number_or("factor", static_cast<double>(max_position_embeddings) / trained, 0, 1e6)
                      : rope.number("factor", 0, 1e6);
  if (yarn.factor < 1) {
    fail(ErrorKind::corrupt, "{}: factor is {}, expected a number of at least 1", rope.where(), yarn.factor);
  }
  yarn.beta_fast = rope.number_or("beta_fast", 32, 0, 1e6);
  yarn.beta_slow = rope.number_or("beta_slow", 1, 0, 1e6);
  yarn.truncate = rope.boolean_or("truncate", true);
  const bool scaled = rope.find("mscale") && rope.find("mscale_all_dim");
  const double inferred = scaled ? yarn_attention_factor(yarn.factor, rope.number("mscale", 0, 1e6)) /
                                       yarn_attention_factor(yarn.factor, rope.number("mscale_all_dim", 0, 1e6))
                                 : yarn_attention_factor(yarn.factor);
  yarn.attention_factor = rope.number_or("attention_factor", inferred, 0, 1e6);
  return yarn;
}

// The kind of rotary scaling that the options of `key` ask for; empty when they are not given.
std::string rope_type(const JsonFields& fields, const char* key) {
  if (!fields.find(key)) return "";
  const JsonFields rope(*fields.find(key), fields.where() + ": " + key);
  for (const char* kind : {"full_attention", "sliding_attention"}) {
    if (rope.find(kind)) refuse(rope, kind, shown_json(*rope.find(kind)), "the same options for all layers");
  }
  const std::string type = rope.text_or("rope_type", rope.text_or("type", "default"));
  if (type != "default" && type != "yarn") refuse(rope, "rope_type", shown(type), "default, yarn");
  return type;
}

}  // namespace

double yarn_attention_factor(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

std::vector<double> rotary_frequencies(int64_t rotary, double theta) {
  std::vector<double> frequency(static_cast<size_t>(rotary / 2));
  for (size_t i = 0; i < frequency.size(); i++) {
    frequency[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary));
  }
  return frequency;
}

std::vector<double> yarn_frequencies(int64_t rotary, double theta, const YarnScaling& yarn) {
  // The dim pair whose frequency turns `turns` times within the original context, as a real number.
  const auto pair_of = [&](double turns) {
    const double wavelength = static_cast<double>(yarn.original_max_position_embeddings) / turns;
    return static_cast<double>(rotary) * std::log(wavelength / (2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = pair_of(yarn.beta_fast), high = pair_of(yarn.beta_slow);
  if (yarn.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(rotary - 1));
  if (low == high) high += 0.001;
  std::vector<double> frequency = rotary_frequencies(rotary, theta);
  for (size_t i = 0; i < frequency.size(); i++) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequency[i] *= stretched / yarn.factor + (1 - stretched);
  }
  return frequency;
}

Rotary make_rotary(int64_t rotary, double theta, const std::optional<YarnScaling>& yarn) {
  if (!yarn) return {.frequency = rotary_frequencies(rotary, theta)};
  return {.frequency = yarn_frequencies(rotary, theta, *yarn), .amplitude = yarn->attention_factor};
}

RotaryOptions parse_rotary(const JsonFields& fields, double partial, int64_t max_position_embeddings) {
  const std::string type = rope_type(fields, "rope_parameters"), old_type = rope_type(fields, "rope_scaling");
  if (!type.empty() && !old_type.empty() && type != old_type) {
    fail(ErrorKind::corrupt, "{}: rope_type is {} in rope_parameters, but {} in rope_scaling; make them equal",
         fields.where(), type, old_type);
  }
  const json none = json::object();
  const char* key = type.empty() && !old_type.empty() ? "rope_scaling" : "rope_parameters";
  const json* nested = fields.find(key);
  const JsonFields rope(nested ? *nested : none, fields.where() + ": " + key);
  RotaryOptions out;
  out.rope_theta = (rope.find("rope_theta") ? rope : fields).number("rope_theta", 0, 1e30);
  const double outer = fields.number_or("partial_rotary_factor", partial, 0, 1);
  out.partial_rotary_factor = rope.number_or("partial_rotary_factor", outer, 0, 1);
  if (fields.find("partial_rotary_factor") && out.partial_rotary_factor != outer) {
    fail(ErrorKind::corrupt, "{}: partial_rotary_factor is {}, but {} in {}; make them equal", fields.where(), outer,
         out.partial_rotary_factor, key);
  }
  if (type != "yarn" && old_type != "yarn") return out;
  out.yarn = parse_yarn(rope, max_position_embeddings);
  if (out.rope_theta == 1) refuse(rope, "rope_theta", "1", "numbers above 1 with rope_type yarn");
  return out;
}

}  // namespace deltaring
