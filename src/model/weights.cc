#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "model/safetensors.h"

namespace deltaring {

namespace {

using Shape = std::vector<int64_t>;

constexpr const char* kEmbedding = "embed_tokens.weight";
constexpr const char* kMtp = "mtp.";
constexpr size_t kListed = 5;  // problems named in one message

std::string head_name(const std::string& prefix) {
  return prefix == "language_model.model." ? "language_model.lm_head.weight" : "lm_head.weight";
}

// The one list of tensors: calls visit(name, shape, field) for each, `field` being a View<2>& or a std::vector<float>&.

template <class Attention, class Visit>
void visit_attention(const ModelConfig& c, const std::string& at, Attention& w, const Visit& visit) {
  const int64_t H = c.hidden_size, D = c.head_dim;
  visit(at + "q_proj.weight", {2 * c.num_attention_heads * D, H}, w.q_proj);
  visit(at + "k_proj.weight", {c.num_key_value_heads * D, H}, w.k_proj);
  visit(at + "v_proj.weight", {c.num_key_value_heads * D, H}, w.v_proj);
  visit(at + "o_proj.weight", {H, c.num_attention_heads * D}, w.o_proj);
  visit(at + "q_norm.weight", {D}, w.q_norm);
  visit(at + "k_norm.weight", {D}, w.k_norm);
}

template <class Gdn, class Visit>
void visit_gdn(const ModelConfig& c, const std::string& at, Gdn& w, const Visit& visit) {
  const int64_t H = c.hidden_size, Hv = c.linear_num_value_heads;
  visit(at + "in_proj_qkv.weight", {c.conv_dim(), H}, w.in_proj_qkv);
  visit(at + "in_proj_z.weight", {c.value_dim(), H}, w.in_proj_z);
  visit(at + "in_proj_b.weight", {Hv, H}, w.in_proj_b);
  visit(at + "in_proj_a.weight", {Hv, H}, w.in_proj_a);
  visit(at + "conv1d.weight", {c.conv_dim(), 1, c.linear_conv_kernel_dim}, w.conv);
  visit(at + "A_log", {Hv}, w.A_log);
  visit(at + "dt_bias", {Hv}, w.dt_bias);
  visit(at + "norm.weight", {c.linear_value_head_dim}, w.norm);
  visit(at + "out_proj.weight", {H, c.value_dim()}, w.out_proj);
}

template <class Layer, class Visit>
void visit_layer(const ModelConfig& c, const std::string& at, Layer& w, const Visit& visit) {
  const int64_t H = c.hidden_size, I = c.intermediate_size;
  visit(at + "input_layernorm.weight", {H}, w.input_layernorm);
  if (w.kind == LayerKind::full_attention) {
    visit_attention(c, at + "self_attn.", w.attention, visit);
  } else {
    visit_gdn(c, at + "linear_attn.", w.gdn, visit);
  }
  visit(at + "post_attention_layernorm.weight", {H}, w.post_attention_layernorm);
  visit(at + "mlp.gate_proj.weight", {I, H}, w.mlp.gate_proj);
  visit(at + "mlp.up_proj.weight", {I, H}, w.mlp.up_proj);
  visit(at + "mlp.down_proj.weight", {H, I}, w.mlp.down_proj);
}

template <class AnyWeights, class Visit>
void visit_all(AnyWeights& w, const Visit& visit) {
  const ModelConfig& c = w.config;
  const int64_t H = c.hidden_size;
  visit(w.prefix + kEmbedding, {c.vocab_size, H}, w.embed_tokens);
  for (size_t i = 0; i < w.layers.size(); i++) {
    visit_layer(c, fmt::format("{}layers.{}.", w.prefix, i), w.layers[i], visit);
  }
  visit(w.prefix + "norm.weight", {H}, w.norm);
  if (!c.tie_word_embeddings.value_or(true)) visit(head_name(w.prefix), {c.vocab_size, H}, w.lm_head);
  if (!w.mtp) return;
  visit(std::string(kMtp) + "fc.weight", {H, 2 * H}, w.mtp->fc);
  visit(std::string(kMtp) + "pre_fc_norm_embedding.weight", {H}, w.mtp->pre_fc_norm_embedding);
  visit(std::string(kMtp) + "pre_fc_norm_hidden.weight", {H}, w.mtp->pre_fc_norm_hidden);
  visit_layer(c, std::string(kMtp) + "layers.0.", w.mtp->layer, visit);
  visit(std::string(kMtp) + "norm.weight", {H}, w.mtp->norm);
}

// Weights with the right layers and nothing bound.
Weights skeleton(const ModelConfig& config, const std::string& prefix) {
  Weights w;
  w.config = config;
  w.prefix = prefix;
  w.layers.resize(config.layer_types.size());
  for (size_t i = 0; i < w.layers.size(); i++) w.layers[i].kind = config.layer_types[i];
  if (config.mtp_num_hidden_layers > 0) w.mtp.emplace().layer.kind = LayerKind::full_attention;
  return w;
}

std::string find_prefix(const TensorSource& source) {
  std::vector<std::string> found;
  for (const char* prefix : {"model.", "model.language_model.", "language_model.model."}) {
    if (source.find(std::string(prefix) + kEmbedding)) found.push_back(prefix);
  }
  if (found.empty()) {
    fail(ErrorKind::not_found, "the weights hold no {} under model., model.language_model. or language_model.model.",
         kEmbedding);
  }
  if (found.size() > 1) {
    fail(ErrorKind::corrupt, "the weights hold {0} under both {1} and {2}; one model has one", kEmbedding, found[0],
         found[1]);
  }
  return found[0];
}

// Decides what the config leaves open, and refuses what the source contradicts.
ModelConfig settle(ModelConfig config, const TensorSource& source, const std::string& prefix,
                   const std::vector<std::string>& names, std::vector<std::string>& notices) {
  const std::string head = head_name(prefix);
  const bool has_head = source.find(head) != nullptr;
  if (config.tie_word_embeddings.value_or(false) && has_head) {
    fail(
        ErrorKind::corrupt,
        "tie_word_embeddings is true, but the weights hold {0}; set tie_word_embeddings to false to use {0}, or remove "
        "the tensor to use {1}{2}",
        head, prefix, kEmbedding);
  }
  config.tie_word_embeddings = config.tie_word_embeddings.value_or(!has_head);
  if (!*config.tie_word_embeddings && !has_head) {
    fail(ErrorKind::corrupt,
         "tie_word_embeddings is false, but {} is missing; set tie_word_embeddings to true to use {}{} for it", head,
         prefix, kEmbedding);
  }
  const auto mtp = std::find_if(names.begin(), names.end(), [](const auto& name) { return name.starts_with(kMtp); });
  const bool has_mtp = mtp != names.end();
  if (has_mtp && config.mtp_num_hidden_layers == 0) {
    fail(ErrorKind::corrupt,
         "the weights hold {}, but mtp_num_hidden_layers is 0 or missing in config.json; set it to 1, or remove the "
         "mtp.* tensors",
         *mtp);
  }
  if (!has_mtp && config.mtp_num_hidden_layers == 1) {
    config.mtp_num_hidden_layers = 0;
    notices.push_back("mtp_num_hidden_layers is 1, but the weights hold no mtp.* tensors: no MTP drafting");
  }
  return config;
}

bool is_vision(const std::string& name) { return name.starts_with("model.visual.") || name.starts_with("visual."); }

// Fills fields from a source and collects everything that does not fit.
class Binder {
 public:
  explicit Binder(const TensorSource& source) : source_(source) {}

  template <class Field>
  void operator()(const std::string& name, const Shape& shape, Field& field) {
    expected_.insert(name);
    const TensorRef* tensor = source_.find(name);
    if (!tensor) {
      problems_.push_back(name + " is missing");
    } else if (tensor->shape != shape) {
      problems_.push_back(fmt::format("{} has shape [{}], expected [{}]", name, fmt::join(tensor->shape, ", "),
                                      fmt::join(shape, ", ")));
    } else if (accepts(name, *tensor)) {
      assign(*tensor, field);
    }
  }

  // Reports; to be called after all fields were visited.
  void finish(const std::vector<std::string>& names, std::vector<std::string>& notices) {
    int64_t vision = 0;
    for (const std::string& name : names) {
      if (is_vision(name)) {
        vision++;
      } else if (!expected_.contains(name)) {
        problems_.push_back(name + " is unexpected");
      }
    }
    if (vision > 0) notices.push_back(fmt::format("{} tensors of the vision tower are skipped", vision));
    if (problems_.empty()) return;
    const size_t listed = std::min(problems_.size(), kListed);
    fail(foreign_ ? ErrorKind::unsupported : ErrorKind::corrupt, "the weights do not fit config.json, {} {}: {}{}",
         problems_.size(), problems_.size() == 1 ? "problem" : "problems",
         fmt::join(problems_.begin(), problems_.begin() + static_cast<std::ptrdiff_t>(listed), "; "),
         problems_.size() > listed ? "; ..." : "");
  }

 private:
  bool accepts(const std::string& name, const TensorRef& tensor) {
    if (tensor.foreign_dtype.empty()) return true;
    problems_.push_back(fmt::format("{} has element type {}, supported: F32, BF16, F16", name, tensor.foreign_dtype));
    foreign_ = true;
    return false;
  }

  static void assign(const TensorRef& tensor, View<2>& matrix) {
    matrix = dense<2>(const_cast<void*>(tensor.data), tensor.dtype, {tensor.shape[0], tensor.shape[1]});
  }

  static void assign(const TensorRef& tensor, std::vector<float>& vector) {
    vector.resize(tensor.bytes / size_of(tensor.dtype));
    for (size_t i = 0; i < vector.size(); i++) {
      vector[i] = load_as_float(tensor.data, tensor.dtype, static_cast<int64_t>(i));
    }
  }

  const TensorSource& source_;
  std::set<std::string> expected_;
  std::vector<std::string> problems_;
  bool foreign_ = false;
};

// Elements whose exponent bits are all set, which are the NaNs and infinities of every IEEE-like format.
template <class Bits>
int64_t count_set(const void* data, int64_t size, Bits exponent) {
  const Bits* bits = static_cast<const Bits*>(data);
  int64_t count = 0;
  for (int64_t i = 0; i < size; i++) count += (bits[i] & exponent) == exponent;
  return count;
}

int64_t count_non_finite(const void* data, DType dtype, int64_t size) {
  if (dtype == DType::f32) return count_set<uint32_t>(data, size, 0x7f800000u);
  return count_set<uint16_t>(data, size, dtype == DType::bf16 ? 0x7f80u : 0x7c00u);
}

}  // namespace

std::vector<TensorSpec> expected_tensors(const ModelConfig& config, const std::string& prefix) {
  std::vector<TensorSpec> list;
  Weights nothing = skeleton(config, prefix);
  visit_all(nothing, [&](std::string name, Shape shape, auto& field) {
    list.push_back({std::move(name), std::move(shape), std::is_same_v<decltype(field), View<2>&>});
  });
  return list;
}

Weights bind_weights(const ModelConfig& config, std::shared_ptr<const TensorSource> source) {
  check(source != nullptr, "bind_weights: source is null");
  const std::vector<std::string> names = source->names();
  const std::string prefix = find_prefix(*source);
  std::vector<std::string> notices;
  Weights w = skeleton(settle(config, *source, prefix, names, notices), prefix);
  Binder binder(*source);
  visit_all(w, [&](const std::string& name, const Shape& shape, auto& field) { binder(name, shape, field); });
  binder.finish(names, notices);
  if (*w.config.tie_word_embeddings) w.lm_head = w.embed_tokens;
  w.notices = std::move(notices);
  w.source = std::move(source);
  return w;
}

Weights load_weights(const std::filesystem::path& folder, const ModelConfig& config) {
  return bind_weights(config, std::make_shared<SafeTensors>(SafeTensors::open(folder)));
}

std::vector<NonFinite> non_finite(const Weights& weights, const std::function<void(double)>& on_progress) {
  std::vector<NonFinite> list;
  double total = 0, done = 0;
  visit_all(weights, [&](const std::string&, const Shape& shape, const auto&) {
    double elements = 1;
    for (const int64_t extent : shape) elements *= static_cast<double>(extent);
    total += elements;
  });
  if (on_progress) on_progress(0);
  visit_all(weights, [&](const std::string& name, const Shape&, const auto& field) {
    int64_t count, size;
    if constexpr (std::is_same_v<decltype(field), const View<2>&>) {
      size = field.shape[0] * field.shape[1];
      count = count_non_finite(field.data, field.dtype, size);
    } else {
      size = static_cast<int64_t>(field.size());
      count = count_non_finite(field.data(), DType::f32, size);
    }
    if (count > 0) list.push_back({name, count, size});
    done += static_cast<double>(size);
    if (on_progress) on_progress(done / total);
  });
  return list;
}

}  // namespace deltaring
