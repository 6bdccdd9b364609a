#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "model/json_fields.h"

namespace deltaring {

using nlohmann::json;

namespace {

// Bounds far above any published model; together they keep all products below 2^62.
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxIntermediate = 1 << 22;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxTaps = 16;
constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kMaxExpertRows = 1 << 25;  // of all experts of a layer
constexpr int64_t kMaxAllExperts = 1 << 17;  // of all layers

constexpr const char* kModelTypes = "qwen3_5_text, qwen3_5, qwen3_5_moe_text, qwen3_5_moe, qwen3_next";

[[noreturn]] void refuse(const JsonFields& fields, const char* key, const std::string& value, const char* works) {
  fail(ErrorKind::unsupported, "{}: {} is {}, which is not supported here; supported: {}", fields.where(), key, value,
       works);
}

DType parse_dtype(const JsonFields& fields, const char* key, DType fallback) {
  const std::string name = fields.text_or(key, name_of(fallback));
  if (const std::optional<DType> dtype = dtype_named(name)) return *dtype;
  refuse(fields, key, shown(name), "float32, bfloat16, float16");
}

// Options of the family whose other values change the forward.
void refuse_foreign_options(const JsonFields& text) {
  const std::string act = text.text_or("hidden_act", "silu");
  if (act != "silu") refuse(text, "hidden_act", shown(act), "silu");
  const std::string gate = text.text_or("output_gate_type", "swish");
  if (gate != "swish" && gate != "silu") refuse(text, "output_gate_type", shown(gate), "swish, silu");
  if (text.boolean_or("attention_bias", false)) refuse(text, "attention_bias", "true", "false");
  if (!text.boolean_or("attn_output_gate", true)) refuse(text, "attn_output_gate", "false", "true");
  if (text.boolean_or("mtp_use_dedicated_embeddings", false)) {
    refuse(text, "mtp_use_dedicated_embeddings", "true", "false");
  }
  const bool has_window = text.find("sliding_window") != nullptr;
  if (text.boolean_or("use_sliding_window", has_window)) {
    const std::string window = has_window ? shown_json(*text.find("sliding_window")) : "given";
    refuse(text, "sliding_window", window, "no sliding window (null, or use_sliding_window false)");
  }
}

// Experts, as the family has them: Qwen3.5 in every layer of a MoE model, Qwen3-Next by rule.
void parse_experts(const JsonFields& text, ModelConfig& config) {
  const bool next = config.interleaved_gdn(), moe = next || config.model_type == "qwen3_5_moe_text";
  const int64_t layers = config.num_hidden_layers;
  if (!moe && text.integer_or("num_experts", 0, 0, INT64_MAX) != 0) {
    refuse(text, "num_experts", shown_json(*text.find("num_experts")), "models of type qwen3_5_moe_text or qwen3_next");
  }
  config.mlp_only_layers = text.integers("mlp_only_layers", 0, layers - 1);
  if (!next && !config.mlp_only_layers.empty()) {
    refuse(text, "mlp_only_layers", shown_json(*text.find("mlp_only_layers")), "[]");
  }
  if (!moe) return;
  config.num_experts = text.integer("num_experts", next ? 0 : 1, kMaxExperts);
  if (config.num_experts == 0) return;
  config.num_experts_per_tok = text.integer("num_experts_per_tok", 1, config.num_experts);
  config.moe_intermediate_size = text.integer("moe_intermediate_size", 1, kMaxIntermediate);
  config.shared_expert_intermediate_size = text.integer("shared_expert_intermediate_size", 1, kMaxIntermediate);
  config.norm_topk_prob = text.boolean_or("norm_topk_prob", true);
  if (!next && !config.norm_topk_prob) refuse(text, "norm_topk_prob", "false", "true");
  config.decoder_sparse_step = next ? text.integer_or("decoder_sparse_step", 1, 1, kMaxLayers) : 1;
  if (config.num_experts * config.moe_intermediate_size > kMaxExpertRows) {
    fail(ErrorKind::unsupported, "{}: num_experts {} times moe_intermediate_size {} is above {}", text.where(),
         config.num_experts, config.moe_intermediate_size, kMaxExpertRows);
  }
  if (config.num_experts * layers > kMaxAllExperts) {
    fail(ErrorKind::unsupported, "{}: num_experts {} times num_hidden_layers {} is above {}", text.where(),
         config.num_experts, layers, kMaxAllExperts);
  }
}

// Of dense layers; models with experts in all of them need not give it.
void parse_dense_mlp(const JsonFields& text, ModelConfig& config) {
  bool dense = false;
  for (int64_t i = 0; i < config.num_hidden_layers; i++) dense |= !config.has_experts(i);
  if (dense || text.find("intermediate_size")) {
    config.intermediate_size = text.integer("intermediate_size", 1, kMaxIntermediate);
  }
}

void parse_layer_types(const JsonFields& text, ModelConfig& config) {
  const int64_t layers = config.num_hidden_layers = text.integer("num_hidden_layers", 1, kMaxLayers);
  const int64_t interval = text.integer_or("full_attention_interval", 4, 1, kMaxLayers);
  const json* types = text.find("layer_types");
  if (!types) {
    for (int64_t i = 0; i < layers; i++) {
      config.layer_types.push_back((i + 1) % interval == 0 ? LayerKind::full_attention : LayerKind::gdn);
    }
    return;
  }
  if (!types->is_array() || static_cast<int64_t>(types->size()) != layers) {
    fail(ErrorKind::corrupt, "{}: layer_types is {}, expected one kind for each of the {} layers", text.where(),
         shown_json(*types), layers);
  }
  for (const json& type : *types) {
    if (type == name_of(LayerKind::gdn)) {
      config.layer_types.push_back(LayerKind::gdn);
    } else if (type == name_of(LayerKind::full_attention)) {
      config.layer_types.push_back(LayerKind::full_attention);
    } else {
      refuse(text, "layer_types", "[.. " + shown_json(type) + " ..]", "linear_attention, full_attention");
    }
  }
}

void parse_attention(const JsonFields& text, ModelConfig& config) {
  config.num_attention_heads = text.integer("num_attention_heads", 1, kMaxHeads);
  config.num_key_value_heads = text.integer("num_key_value_heads", 1, kMaxHeads);
  config.head_dim = text.integer("head_dim", 1, kMaxHeadDim);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fail(ErrorKind::unsupported, "{}: num_attention_heads is {}, expected a multiple of num_key_value_heads, {}",
         text.where(), config.num_attention_heads, config.num_key_value_heads);
  }
}

void parse_rope(const JsonFields& text, ModelConfig& config) {
  const RotaryOptions rope = parse_rotary(text, 0.25, config.max_position_embeddings);
  config.rope_theta = rope.rope_theta;
  config.yarn = rope.yarn;
  config.rotary_dim = static_cast<int64_t>(static_cast<double>(config.head_dim) * rope.partial_rotary_factor);
  if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0) {
    fail(ErrorKind::unsupported,
         "{}: partial_rotary_factor {} rotates {} of head_dim {} dims, expected an even number of at least 2",
         text.where(), rope.partial_rotary_factor, config.rotary_dim, config.head_dim);
  }
  if (!config.yarn) return;
  const double stretched = config.yarn->factor * static_cast<double>(config.yarn->original_max_position_embeddings);
  const double positions = std::min(stretched, static_cast<double>(kMaxPositions));
  config.max_position_embeddings = std::max(config.max_position_embeddings, static_cast<int64_t>(positions));
}

void parse_gdn(const JsonFields& text, ModelConfig& config) {
  config.linear_num_key_heads = text.integer("linear_num_key_heads", 1, kMaxHeads);
  config.linear_num_value_heads = text.integer("linear_num_value_heads", 1, kMaxHeads);
  config.linear_key_head_dim = text.integer("linear_key_head_dim", 1, kMaxHeadDim);
  config.linear_value_head_dim = text.integer("linear_value_head_dim", 1, kMaxHeadDim);
  config.linear_conv_kernel_dim = text.integer("linear_conv_kernel_dim", 2, kMaxTaps);
  config.mamba_ssm_dtype = parse_dtype(text, "mamba_ssm_dtype", DType::f32);
  const int64_t Hk = config.linear_num_key_heads, Hv = config.linear_num_value_heads;
  const bool known = Hv == Hk || Hv == 2 * Hk || Hv == 3 * Hk || Hv == 4 * Hk || Hv == 8 * Hk;
  if (!known) {
    fail(ErrorKind::unsupported,
         "{}: linear_num_value_heads is {}, expected 1, 2, 3, 4 or 8 times linear_num_key_heads, {}", text.where(), Hv,
         Hk);
  }
}

std::optional<bool> parse_tie(const JsonFields& top, const JsonFields& text) {
  const char* key = "tie_word_embeddings";
  const bool outer = top.boolean_or(key, false), inner = text.boolean_or(key, false);
  if (top.find(key) && text.find(key) && outer != inner) {
    fail(ErrorKind::corrupt, "{}: {} is {}, but {} in text_config; make them equal", top.where(), key, outer, inner);
  }
  if (!top.find(key) && !text.find(key)) return std::nullopt;
  return text.find(key) ? inner : outer;
}

std::optional<BlockFp8> parse_quantization(const JsonFields& top, const JsonFields& text) {
  const JsonFields& fields = text.find("quantization_config") ? text : top;
  const json* quantization = fields.find("quantization_config");
  if (!quantization) return std::nullopt;
  return parse_block_fp8(JsonFields(*quantization, fields.where() + ": quantization_config"));
}

// `type` is what the text model has to be.
ModelConfig parse_text_model(const JsonFields& top, const JsonFields& text, const std::string& type) {
  ModelConfig config;
  config.model_type = text.text_or("model_type", type);
  if (config.model_type != type) refuse(text, "model_type", shown(config.model_type), type.c_str());
  refuse_foreign_options(text);
  config.fp8 = parse_quantization(top, text);
  config.hidden_size = text.integer("hidden_size", 1, kMaxWidth);
  config.vocab_size = text.integer("vocab_size", 1, kMaxVocab);
  config.max_position_embeddings = text.integer("max_position_embeddings", 1, kMaxPositions);
  config.rms_norm_eps = static_cast<float>(text.number_or("rms_norm_eps", 1e-6, 1e-20, 1));
  parse_layer_types(text, config);
  parse_experts(text, config);
  parse_dense_mlp(text, config);
  parse_attention(text, config);
  parse_rope(text, config);
  parse_gdn(text, config);
  // Qwen3-Next's files have a head, of which their config says nothing.
  config.mtp_num_hidden_layers = text.integer_or("mtp_num_hidden_layers", config.interleaved_gdn() ? 1 : 0, 0, 1);
  config.tie_word_embeddings = parse_tie(top, text);
  const JsonFields& typed = text.find("dtype") || text.find("torch_dtype") ? text : top;
  config.dtype = parse_dtype(typed, typed.find("dtype") ? "dtype" : "torch_dtype", DType::bf16);
  config.eos_token_id = (text.find("eos_token_id") ? text : top).integers("eos_token_id", 0, config.vocab_size - 1);
  return config;
}

}  // namespace

int64_t ModelConfig::count(LayerKind kind) const { return std::count(layer_types.begin(), layer_types.end(), kind); }

bool ModelConfig::has_experts(int64_t layer) const {
  return num_experts > 0 && (layer + 1) % decoder_sparse_step == 0 &&
         std::ranges::find(mlp_only_layers, layer) == mlp_only_layers.end();
}

std::string to_string(const ModelConfig& config) {
  const ModelConfig& c = config;
  std::string out;
  auto line = [&](const char* name, const auto& value) { out += fmt::format("{:<32}{}\n", name, value); };
  line("model_type", c.model_type);
  line("hidden_size", c.hidden_size);
  if (c.intermediate_size > 0) line("intermediate_size", c.intermediate_size);
  if (c.num_experts > 0) {
    line("num_experts", c.num_experts);
    line("num_experts_per_tok", c.num_experts_per_tok);
    line("moe_intermediate_size", c.moe_intermediate_size);
    line("shared_expert_intermediate_size", c.shared_expert_intermediate_size);
    line("norm_topk_prob", c.norm_topk_prob);
    line("decoder_sparse_step", c.decoder_sparse_step);
    line("mlp_only_layers", fmt::format("[{}]", fmt::join(c.mlp_only_layers, ", ")));
  }
  line("vocab_size", c.vocab_size);
  line("num_hidden_layers", fmt::format("{} ({} linear_attention, {} full_attention)", c.num_hidden_layers,
                                        c.count(LayerKind::gdn), c.count(LayerKind::full_attention)));
  line("num_attention_heads", c.num_attention_heads);
  line("num_key_value_heads", c.num_key_value_heads);
  line("head_dim", fmt::format("{} ({} rotary)", c.head_dim, c.rotary_dim));
  line("rope_theta", c.rope_theta);
  if (c.yarn) {
    line("yarn factor", fmt::format("{} of {} positions, attention_factor {}", c.yarn->factor,
                                    c.yarn->original_max_position_embeddings, c.yarn->attention_factor));
  }
  line("linear_num_key_heads", c.linear_num_key_heads);
  line("linear_num_value_heads", c.linear_num_value_heads);
  line("linear_key_head_dim", c.linear_key_head_dim);
  line("linear_value_head_dim", c.linear_value_head_dim);
  line("linear_conv_kernel_dim", c.linear_conv_kernel_dim);
  line("rms_norm_eps", c.rms_norm_eps);
  line("max_position_embeddings", c.max_position_embeddings);
  line("tie_word_embeddings", c.tie_word_embeddings ? (*c.tie_word_embeddings ? "true" : "false") : "not given");
  line("mtp_num_hidden_layers", c.mtp_num_hidden_layers);
  line("mamba_ssm_dtype", name_of(c.mamba_ssm_dtype));
  line("dtype", name_of(c.dtype));
  if (c.fp8) line("quantization_config", "float8 e4m3, 128 x 128 blocks");
  line("eos_token_id", fmt::format("{}", fmt::join(c.eos_token_id, ", ")));
  return out;
}

ModelConfig parse_model_config(std::string_view text, const std::string& where) {
  const json document = parse_json(text, where);
  const JsonFields top(document, where);
  const std::string type = top.text_or("model_type", "not given");
  if (type == "qwen3_5_text" || type == "qwen3_5_moe_text" || type == "qwen3_next") {
    return parse_text_model(top, top, type);
  }
  if (type != "qwen3_5" && type != "qwen3_5_moe") refuse(top, "model_type", shown(type), kModelTypes);
  const json* nested = top.find("text_config");
  if (!nested) fail(ErrorKind::corrupt, "{}: model_type is {}, but text_config is missing", where, type);
  ModelConfig config = parse_text_model(top, JsonFields(*nested, where + ": text_config"), type + "_text");
  if (top.find("vision_config")) {
    config.notices.push_back(where + ": vision_config is skipped, only text is supported");
  }
  return config;
}

ModelConfig load_model_config(const std::filesystem::path& folder) {
  check_model_folder(folder);
  const std::filesystem::path path = folder / "config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    fail(ErrorKind::not_found,
         "{} holds no config.json, which a model folder has beside tokenizer.json and "
         "model.safetensors",
         folder.string());
  }
  return parse_model_config(read_text(path), path.string());
}

}  // namespace deltaring
