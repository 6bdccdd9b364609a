#include "draft/block_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/json_fields.h"

namespace deltaring {

using nlohmann::json;

namespace {

constexpr int64_t kMaxWidth = 1 << 20, kMaxIntermediate = 1 << 22, kMaxVocab = 1 << 24, kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 4096, kMaxLayers = 64, kMaxBlock = 256, kMaxWindow = int64_t{1} << 30;
constexpr int64_t kMaxRank = 1 << 16, kMaxSelected = 1024, kMaxTaps = 64, kMaxKernel = 64;

[[noreturn]] void refuse(const JsonFields& fields, const char* key, const std::string& value, const char* works) {
  fail(ErrorKind::unsupported, "{}: {} is {}, which is not supported here; supported: {}", fields.where(), key, value,
       works);
}

// The objects of one file in which a drafter's own fields may stand: the top and the nested ones.
class Places {
 public:
  explicit Places(const JsonFields& top) {
    for (const char* key : {"dspark_config", "dflash_config"}) {
      if (top.find(key)) places_.emplace_back(*top.find(key), top.where() + ": " + key);
    }
    places_.push_back(top);
  }

  // Where the key is given; the top when nowhere. A key that is given twice must say the same.
  const JsonFields& of(const char* key) const {
    const JsonFields* found = nullptr;
    for (const JsonFields& place : places_) {
      if (!place.find(key)) continue;
      if (found && *found->find(key) != *place.find(key)) {
        fail(ErrorKind::corrupt, "{}: {} is {}, but {} in {}; make them equal", place.where(), key,
             shown_json(*place.find(key)), shown_json(*found->find(key)), found->where());
      }
      if (!found) found = &place;
    }
    return found ? *found : places_.back();
  }
  bool has(const char* key) const { return of(key).find(key) != nullptr; }

  int64_t integer(const char* key, int64_t low, int64_t high) const { return of(key).integer(key, low, high); }
  int64_t integer_or(const char* key, int64_t fallback, int64_t low, int64_t high) const {
    return of(key).integer_or(key, fallback, low, high);
  }
  std::vector<int64_t> integers(const char* key, int64_t low, int64_t high) const {
    return of(key).integers(key, low, high);
  }
  float number_or(const char* key, double fallback, double low, double high) const {
    return static_cast<float>(of(key).number_or(key, fallback, low, high));
  }
  bool boolean_or(const char* key, bool fallback) const { return of(key).boolean_or(key, fallback); }
  std::string text_or(const char* key, const std::string& fallback) const { return of(key).text_or(key, fallback); }

 private:
  std::vector<JsonFields> places_;
};

// The fields of a Qwen3 layer.
void parse_layer_shape(const JsonFields& layer, BlockConfig& c) {
  c.hidden_size = layer.integer("hidden_size", 1, kMaxWidth);
  c.intermediate_size = layer.integer("intermediate_size", 1, kMaxIntermediate);
  c.vocab_size = layer.integer("vocab_size", 1, kMaxVocab);
  c.num_attention_heads = layer.integer("num_attention_heads", 1, kMaxHeads);
  c.num_key_value_heads = layer.integer_or("num_key_value_heads", c.num_attention_heads, 1, kMaxHeads);
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    fail(ErrorKind::unsupported, "{}: num_attention_heads is {}, expected a multiple of num_key_value_heads, {}",
         layer.where(), c.num_attention_heads, c.num_key_value_heads);
  }
  c.head_dim = layer.integer("head_dim", 2, kMaxHeadDim);
  if (c.head_dim % 2 != 0) refuse(layer, "head_dim", std::to_string(c.head_dim), "even dims, which rotate in pairs");
  c.rms_norm_eps = static_cast<float>(layer.number_or("rms_norm_eps", 1e-6, 0, 1));
  const std::string act = layer.text_or("hidden_act", "silu");
  if (act != "silu") refuse(layer, "hidden_act", shown(act), "silu");
  if (layer.boolean_or("attention_bias", false)) refuse(layer, "attention_bias", "true", "false");
  if (const json* given = layer.find("quantization_config")) {
    refuse(layer, "quantization_config", shown_json(*given), "unquantised weights in float32, bfloat16 or float16");
  }
}

void parse_rope(const JsonFields& layer, BlockConfig& c) {
  const RotaryOptions rope = parse_rotary(layer, 1, layer.integer_or("max_position_embeddings", 0, 1, kMaxPositions));
  if (rope.partial_rotary_factor != 1) {
    refuse(layer, "partial_rotary_factor", fmt::format("{}", rope.partial_rotary_factor), "1");
  }
  c.rope_theta = rope.rope_theta;
  c.yarn = rope.yarn;
}

// Which layers slide, and in which order the sources of causality count: is_causal for all layers, dflash_config.causal
// for all layers, then sliding layers are causal inside the block and full ones are not, unless the container says that
// sliding ones are not either. Without layer_types use_swa makes all layers slide, not causally.
void parse_attention(const JsonFields& layer, const Places& own, bool sliding_causal, BlockConfig& c) {
  c.layers.resize(layer.integer("num_hidden_layers", 1, kMaxLayers));
  const int64_t window =
      own.integer_or("swa_window_size", layer.integer_or("sliding_window", 0, 1, kMaxWindow), 1, kMaxWindow);
  const auto slide = [&](BlockAttention& attention, bool causal) {
    if (window == 0) fail(ErrorKind::corrupt, "{}: a layer slides, but sliding_window is missing", layer.where());
    attention = {.window = window, .causal = causal};
  };
  const json* types = layer.find("layer_types");
  if (!types) {
    if (layer.boolean_or("use_sliding_window", false)) refuse(layer, "use_sliding_window", "true", "layer_types");
    if (own.boolean_or("use_swa", false)) {
      for (BlockAttention& attention : c.layers) slide(attention, false);
    }
  } else if (!types->is_array() || types->size() != c.layers.size()) {
    fail(ErrorKind::corrupt, "{}: layer_types is {}, expected one kind for each of the {} layers", layer.where(),
         shown_json(*types), c.layers.size());
  }
  for (size_t i = 0; types && i < c.layers.size(); i++) {
    if ((*types)[i] == "sliding_attention") {
      slide(c.layers[i], sliding_causal);
    } else if ((*types)[i] != "full_attention") {
      refuse(layer, "layer_types", "[.. " + shown_json((*types)[i]) + " ..]", "full_attention, sliding_attention");
    }
  }
  const char* causal = layer.find("is_causal") ? "is_causal" : "causal";
  const JsonFields& said = layer.find("is_causal") ? layer : own.of("causal");
  if (!said.find(causal)) return;
  for (BlockAttention& attention : c.layers) attention.causal = said.boolean_or(causal, false);
}

MarkovHead parse_markov(const Places& own) {
  const std::string type = own.text_or("markov_head_type", "vanilla");
  if (type == "vanilla") return MarkovHead::vanilla;
  if (type == "gated") return MarkovHead::gated;
  if (type == "rnn") return MarkovHead::rnn;
  refuse(own.of("markov_head_type"), "markov_head_type", shown(type), "vanilla, gated, rnn");
}

void parse_heads(const Places& own, BlockConfig& c) {
  c.conv_kernel_size = own.integer_or("conv_kernel_size", 0, 0, kMaxKernel);
  if (c.conv_kernel_size > 0) {
    c.conv_group_size = own.integer("conv_group_size", 1, kMaxWidth);
    if (c.hidden_size % c.conv_group_size != 0) {
      fail(ErrorKind::corrupt, "{}: conv_group_size is {}, expected a divisor of hidden_size, {}", c.where,
           c.conv_group_size, c.hidden_size);
    }
  }
  c.selector_rank = own.integer_or("selector_rank", 0, 0, kMaxRank);
  if (c.selector_rank > 0) c.selector_top_k = own.integer("selector_top_k", 1, kMaxSelected);
  c.markov_rank = own.integer_or("markov_rank", 0, 0, kMaxRank);
  if (c.markov_rank > 0) c.markov_head = parse_markov(own);
  c.confidence_head = own.boolean_or("enable_confidence_head", false);
  c.confidence_with_markov = c.confidence_head && own.boolean_or("confidence_head_with_markov", false);
  if (c.confidence_with_markov && c.markov_rank == 0) {
    fail(ErrorKind::corrupt, "{}: confidence_head_with_markov is true, but markov_rank is 0", c.where);
  }
  if (c.selector_rank > 0 && c.draft_vocab_size > 0) {
    fail(ErrorKind::unsupported, "{}: selector_rank with draft_vocab_size is not supported here; supported: either",
         c.where);
  }
  if ((c.selector_rank > 0 || c.conv_kernel_size > 0) && (c.markov_rank > 0 || c.confidence_head)) {
    fail(ErrorKind::unsupported, "{}: {} with {} is not supported here; supported: either", c.where,
         c.selector_rank > 0 ? "selector_rank" : "conv_kernel_size",
         c.markov_rank > 0 ? "markov_rank" : "enable_confidence_head");
  }
}

void parse_scales(const Places& own, BlockConfig& c) {
  c.sinks = own.boolean_or("attention_sink_bias", false);
  c.value_scale = own.number_or("attention_value_scale", 1, 0, 1e6);
  c.input_embedding_scale = own.number_or("input_embedding_scale", 1, 0, 1e6);
  c.output_multiplier = own.number_or("output_multiplier", 1, 0, 1e6);
  c.final_logit_softcapping = std::max(0.0f, own.number_or("final_logit_softcapping", 0, -1, 1e6));
}

// speculators counts layers as hidden_states does: 0 is the embedding.
std::vector<int64_t> shifted_taps(std::vector<int64_t> ids) {
  for (int64_t& id : ids) id--;
  return ids;
}

void parse_speculators(const JsonFields& top, const std::string& type, BlockConfig& c) {
  if (type != "dflash" && type != "dflash2" && type != "dspark") {
    refuse(top, "speculators_model_type", shown(type), "dflash, dflash2, dspark");
  }
  if (!top.find("transformer_layer_config")) {
    fail(ErrorKind::corrupt, "{}: speculators_model_type is {}, but transformer_layer_config is missing", c.where,
         type);
  }
  const JsonFields layer(*top.find("transformer_layer_config"), c.where + ": transformer_layer_config");
  const Places own(top);
  parse_layer_shape(layer, c);
  parse_rope(layer, c);
  parse_attention(layer, own, !top.boolean_or("sliding_window_non_causal", type == "dflash2"), c);
  c.block_size = top.integer_or("block_size", 8, 1, kMaxBlock);
  c.first_row_predicts = top.boolean_or("sample_from_anchor", type == "dspark");
  if (top.boolean_or("shift_label", false)) refuse(top, "shift_label", "true", "false");
  c.target_layer_ids = shifted_taps(top.integers("aux_hidden_state_layer_ids", 0, kMaxWidth));
  if (c.target_layer_ids.empty()) {
    fail(ErrorKind::corrupt, "{}: aux_hidden_state_layer_ids is missing; it names the target's layers", c.where);
  }
  const int64_t rows = top.integer_or("draft_vocab_size", c.vocab_size, 1, c.vocab_size);
  if (rows < c.vocab_size) c.draft_vocab_size = rows;
  if (top.integer_or("target_hidden_size", c.hidden_size, 1, kMaxWidth) != c.hidden_size) {
    refuse(top, "target_hidden_size", shown_json(*top.find("target_hidden_size")),
           "the drafter's own hidden_size: it reads the target's embedding and head");
  }
}

void parse_flat(const JsonFields& top, BlockConfig& c) {
  const Places own(top);
  const bool nested = top.find("dflash_config") || top.find("dspark_config");
  if (top.find("dspark_block_size") || top.find("dspark_target_layer_ids")) {
    fail(ErrorKind::unsupported,
         "{}: dspark_block_size belongs to a drafter that is bundled with its target, which is not supported here; "
         "supported: drafters in a folder of their own",
         c.where);
  }
  if (!nested && !(top.find("mask_token_id") && top.find("target_layer_ids"))) {
    fail(ErrorKind::unsupported,
         "{}: no block drafter: it holds no dflash_config, dspark_config, speculators_model_type, and not both "
         "mask_token_id and target_layer_ids",
         c.where);
  }
  parse_layer_shape(top, c);
  parse_rope(top, c);
  parse_attention(top, own, true, c);
  c.block_size = own.integer("block_size", 1, kMaxBlock);
  // DeepSpec's files, DSpark or not, say markov_rank or num_anchors and let the anchor's row predict.
  c.first_row_predicts =
      own.boolean_or("sample_from_anchor", own.has("markov_rank") || own.has("num_anchors") || !nested);
  c.target_layer_ids = own.integers("target_layer_ids", -1, kMaxWidth);
}

// Evenly spaced over the target's layers [1, L-3], one for each of the drafter's; halves round to even.
std::vector<int64_t> default_taps(int64_t draft_layers, int64_t L) {
  if (draft_layers == 1) return {L / 2};
  std::vector<int64_t> taps;
  for (int64_t i = 0; i < draft_layers; i++) {
    const double place = static_cast<double>(i * (L - 4)) / static_cast<double>(draft_layers - 1);
    taps.push_back(std::lrint(1 + place));
  }
  return taps;
}

}  // namespace

BlockKind BlockConfig::kind() const {
  if (selector_rank > 0 || conv_kernel_size > 0) return BlockKind::dflash2;
  return markov_rank > 0 || confidence_head ? BlockKind::dspark : BlockKind::dflash;
}

BlockConfig parse_block_config(std::string_view text, const std::string& where) {
  const json document = parse_json(text, where);
  const JsonFields top(document, where);
  const Places own(top);
  BlockConfig c;
  c.where = where;
  const std::string type = top.text_or("speculators_model_type", "");
  type.empty() ? parse_flat(top, c) : parse_speculators(top, type, c);
  const std::string projector = own.text_or("projector_type", "dflash");
  if (projector == "domino") refuse(own.of("projector_type"), "projector_type", "domino", "dflash, dspark");
  if (c.drafts() < 1) fail(ErrorKind::corrupt, "{}: block_size is {}, which drafts nothing", where, c.block_size);
  c.mask_token_id = own.integer("mask_token_id", 0, c.vocab_size - 1);
  c.num_target_layers = own.integer_or("num_target_layers", 0, 1, 1 << 20);
  if (static_cast<int64_t>(c.target_layer_ids.size()) > kMaxTaps) {
    fail(ErrorKind::unsupported, "{}: {} taps, supported: up to {}", where, c.target_layer_ids.size(), kMaxTaps);
  }
  parse_scales(own, c);
  parse_heads(own, c);
  return c;
}

BlockConfig load_block_config(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path path = folder / "config.json";
  if (!std::filesystem::exists(path, ignored)) {
    fail(ErrorKind::not_found, "drafter folder {} holds no config.json; a drafter has one beside model.safetensors",
         folder.string());
  }
  return parse_block_config(read_text(path), path.string());
}

void fit_to_target(BlockConfig& c, const ModelConfig& target) {
  const int64_t L = target.num_hidden_layers, draft_layers = static_cast<int64_t>(c.layers.size());
  const auto same = [&](const char* what, int64_t own, int64_t theirs) {
    if (own == theirs) return;
    fail(ErrorKind::unsupported, "{}: the drafter was made for a target with {} {}, this one has {}", c.where, what,
         own, theirs);
  };
  same("vocab_size", c.vocab_size, target.vocab_size);
  same("hidden_size", c.hidden_size, target.hidden_size);
  if (c.num_target_layers > 0) same("num_target_layers", c.num_target_layers, L);
  if (c.target_layer_ids.empty()) c.target_layer_ids = default_taps(draft_layers, L);
  for (const int64_t layer : c.target_layer_ids) {
    if (layer >= -1 && layer < L - 1) continue;
    fail(ErrorKind::unsupported,
         "{}: the drafter taps target layer {}, possible are -1 to {}: the target has {} layers, and behind the last "
         "drafters are trained on normed states",
         c.where, layer, L - 2, L);
  }
}

}  // namespace deltaring
