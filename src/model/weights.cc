#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "model/interleaved_gdn.h"
#include "model/safetensors.h"
#include "model/tensor_binder.h"
#include "model/weight_list.h"

namespace deltaring {

namespace {

using Shape = std::vector<int64_t>;

// Whether the experts of the MLP whose tensor names start with `at` are fused.
using IsFused = std::function<bool(const std::string& at)>;

// Weights with the right layers and nothing bound.
Weights skeleton(const ModelConfig& config, const std::string& prefix, const IsFused& is_fused) {
  Weights w;
  w.config = config;
  w.prefix = prefix;
  const auto add_experts = [&](LayerWeights& layer, const std::string& at) {
    MoeWeights& moe = layer.moe.emplace();
    moe.fused = is_fused(at);
    moe.experts.resize(static_cast<size_t>(config.num_experts + 1));
  };
  w.layers.resize(config.layer_types.size());
  for (size_t i = 0; i < w.layers.size(); i++) {
    w.layers[i].kind = config.layer_types[i];
    const bool experts = config.has_experts(static_cast<int64_t>(i));
    if (experts) add_experts(w.layers[i], fmt::format("{}layers.{}.mlp.", prefix, i));
  }
  if (config.mtp_num_hidden_layers > 0) {
    LayerWeights& layer = w.mtp.emplace().layer;
    layer.kind = LayerKind::full_attention;
    if (config.num_experts > 0) add_experts(layer, std::string(kMtp) + "layers.0.mlp.");
  }
  return w;
}

// What kind of tensor a name stands for, to whoever says its dtype.
enum class Role { vector, matrix, linear, scales };

template <class Field>
constexpr Role role_of() {
  if constexpr (Scalable<Field>) return Role::linear;
  return std::same_as<std::remove_const_t<Field>, View<2>> ? Role::matrix : Role::vector;
}

Shape scales_shape(Shape shape) {
  for (size_t i = shape.size() - 2; i < shape.size(); i++) shape[i] = WeightMatrix::blocks(shape[i]);
  return shape;
}

// Everything that the weights are bound to, the scales of a tensor behind it.
std::vector<TensorSpec> list_tensors(const Weights& weights,
                                     const std::function<DType(const std::string&, Role)>& dtype_of) {
  std::vector<TensorSpec> list;
  const auto add = [&](const std::string& name, const Shape& shape, Role role, bool reordered) {
    TensorSpec spec{.name = name, .shape = shape, .is_matrix = role != Role::vector, .dtype = dtype_of(name, role)};
    if (role == Role::vector) spec.copied = spec.elements() * static_cast<int64_t>(sizeof(float));
    if (reordered) spec.copied = spec.bytes();
    return list.emplace_back(std::move(spec)).dtype;
  };
  visit_all(weights, [&](const std::string& name, const Shape& shape, const auto& field) {
    constexpr Role role = role_of<std::remove_reference_t<decltype(field)>>();
    const bool reordered = name.ends_with("in_proj_qkvz.weight") || name.ends_with("in_proj_ba.weight");
    const DType dtype = add(name, shape, role, reordered);
    if (dtype == DType::f8_e4m3) add(scales_name(name), scales_shape(shape), Role::scales, reordered);
  });
  return list;
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
    notices.push_back("the weights hold no mtp.* tensors: no MTP drafting");
  }
  return config;
}

bool is_vision(const std::string& name) { return name.starts_with("model.visual.") || name.starts_with("visual."); }

// Float8 codes are weights where the config says so and their scales are there.
class Binder : TensorBinder {
 public:
  Binder(const TensorSource& source, const std::optional<BlockFp8>& fp8) : TensorBinder(source), fp8_(fp8) {}

  template <class Field>
  void operator()(const std::string& name, const Shape& shape, Field& field) {
    const TensorRef* tensor = find(name, shape);
    if (!tensor || !accepts(name, *tensor, Scalable<Field>)) return;
    if constexpr (Scalable<Field>) {
      if (tensor->dtype == DType::f8_e4m3 && !bind_scales(name, scales_shape(shape), field)) return;
      assign(*tensor, field.values);
    } else {
      assign(*tensor, field);
    }
  }

  // Reports; to be called after all fields were visited.
  void finish(const std::vector<std::string>& names, std::vector<std::string>& notices) {
    int64_t vision = 0;
    for (const std::string& name : names) {
      if (is_vision(name)) {
        vision++;
      } else if (!is_expected(name)) {
        add_problem(name + " is unexpected");
      }
    }
    if (vision > 0) notices.push_back(fmt::format("{} tensors of the vision tower are skipped", vision));
    report("the weights do not fit config.json");
  }

 private:
  template <Scalable Field>
  bool bind_scales(const std::string& name, const Shape& shape, Field& field) {
    const std::string scales = scales_name(name);
    const char* problem = !fp8_                   ? "config.json has no quantization_config with quant_method fp8"
                          : !fp8_->converts(name) ? "modules_to_not_convert names it"
                                                  : nullptr;
    if (problem) {
      expect(scales);
      add_problem(fmt::format("{} is F8_E4M3, but {}", name, problem));
      return false;
    }
    const TensorRef* tensor = find(scales, shape);
    if (!tensor || !accepts(scales, *tensor, false)) return false;
    assign(*tensor, field.scales);
    return true;
  }

  const std::optional<BlockFp8>& fp8_;
};

// Views of each expert in stacked ones.
void unstack_experts(const ModelConfig& config, MoeWeights& moe) {
  if (!moe.fused) return;
  const int64_t I = config.moe_intermediate_size;
  if (moe.gate_up.scales && I % WeightMatrix::kBlock != 0) {
    fail(ErrorKind::unsupported,
         "float8 experts.gate_up_proj needs a moe_intermediate_size of whole blocks of {}, and has {}; experts with a "
         "tensor each work",
         WeightMatrix::kBlock, I);
  }
  for (int64_t e = 0; e < config.num_experts; e++) {
    const WeightMatrix gate_up = moe.gate_up[e];
    moe.experts[static_cast<size_t>(e)] = {.gate = gate_up.rows(0, I), .up = gate_up.rows(I, I), .down = moe.down[e]};
  }
}

}  // namespace

int64_t TensorSpec::elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

std::vector<TensorSpec> expected_tensors(const ModelConfig& config, const std::string& prefix) {
  const bool fused = !config.fp8 && !config.interleaved_gdn();  // as the published files of the family are
  const auto dtype_of = [&](const std::string& name, Role role) {
    if (role == Role::scales) return DType::f32;
    return role == Role::linear && config.fp8 && config.fp8->converts(name) ? DType::f8_e4m3 : config.dtype;
  };
  return list_tensors(skeleton(config, prefix, [fused](const std::string&) { return fused; }), dtype_of);
}

std::vector<TensorSpec> bound_tensors(const Weights& weights) {
  return list_tensors(weights, [&](const std::string& name, Role) { return weights.source->find(name)->dtype; });
}

Weights bind_weights(const ModelConfig& config, std::shared_ptr<const TensorSource> source) {
  check(source != nullptr, "bind_weights: source is null");
  const std::vector<std::string> names = source->names();
  const std::string prefix = find_prefix(*source);
  std::vector<std::string> notices;
  Weights w = skeleton(settle(config, *source, prefix, names, notices), prefix,
                       [&](const std::string& at) { return source->find(at + "experts.gate_up_proj") != nullptr; });
  Binder binder(*source, w.config.fp8);
  visit_all(w, [&](const std::string& name, const Shape& shape, auto& field) { binder(name, shape, field); });
  binder.finish(names, notices);
  if (*w.config.tie_word_embeddings) w.lm_head = w.embed_tokens;
  for (LayerWeights& layer : w.layers) {
    if (layer.moe) unstack_experts(w.config, *layer.moe);
  }
  if (w.mtp && w.mtp->layer.moe) unstack_experts(w.config, *w.mtp->layer.moe);
  if (w.config.interleaved_gdn()) deinterleave_gdn(w);
  w.notices = std::move(notices);
  w.source = std::move(source);
  return w;
}

Weights load_weights(const std::filesystem::path& folder, const ModelConfig& config) {
  return bind_weights(config, std::make_shared<SafeTensors>(SafeTensors::open(folder)));
}

}  // namespace deltaring
