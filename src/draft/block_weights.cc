#include "draft/block_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "model/non_finite.h"
#include "model/safetensors.h"
#include "model/tensor_binder.h"

namespace deltaring {

namespace {

using Shape = std::vector<int64_t>;

// The one list of tensors: calls visit(name, shape, field) for each.

template <class Conv, class Visit>
void visit_conv(const BlockConfig& c, const std::string& at, Conv& w, const Visit& visit) {
  const int64_t H = c.hidden_size, K = c.conv_kernel_size;
  visit(at + "base_kernel", {2, K, H}, w.base_kernel);
  visit(at + "kernel_projection.weight", {2 * K * (H / c.conv_group_size), H}, w.kernel_projection);
}

template <class Layer, class Visit>
void visit_layer(const BlockConfig& c, const std::string& at, Layer& w, const Visit& visit) {
  const int64_t H = c.hidden_size, I = c.intermediate_size, D = c.head_dim;
  const int64_t q_dim = c.num_attention_heads * D, kv_dim = c.num_key_value_heads * D;
  visit(at + "input_layernorm.weight", {H}, w.input_layernorm);
  visit(at + "self_attn.q_proj.weight", {q_dim, H}, w.q_proj);
  visit(at + "self_attn.k_proj.weight", {kv_dim, H}, w.k_proj);
  visit(at + "self_attn.v_proj.weight", {kv_dim, H}, w.v_proj);
  visit(at + "self_attn.o_proj.weight", {H, q_dim}, w.o_proj);
  visit(at + "self_attn.q_norm.weight", {D}, w.q_norm);
  visit(at + "self_attn.k_norm.weight", {D}, w.k_norm);
  if (c.sinks) visit(at + "self_attn.attention_sink_bias", {c.num_attention_heads}, w.sinks);
  visit(at + "post_attention_layernorm.weight", {H}, w.post_attention_layernorm);
  visit(at + "mlp.gate_proj.weight", {I, H}, w.mlp.gate_proj);
  visit(at + "mlp.up_proj.weight", {I, H}, w.mlp.up_proj);
  visit(at + "mlp.down_proj.weight", {H, I}, w.mlp.down_proj);
  if (c.conv_kernel_size == 0) return;
  visit_conv(c, at + "attention_conv.", w.attention_conv, visit);
  visit_conv(c, at + "mlp_conv.", w.mlp_conv, visit);
}

template <class AnyWeights, class Visit>
void visit_heads(AnyWeights& w, const Visit& visit) {
  const BlockConfig& c = w.config;
  const int64_t H = c.hidden_size, V = c.vocab_size, R = c.selector_rank, r = c.markov_rank;
  const int64_t own = c.draft_vocab_size > 0 ? c.draft_vocab_size : V;
  if (c.draft_vocab_size > 0) {
    visit("lm_head.weight", {own, H}, w.lm_head);
    visit("d2t", {own}, w.target_ids);
  }
  if (R > 0) {
    visit("candidate_selector.predecessor_codebook", {V, R}, w.selector.predecessor_codebook);
    visit("candidate_selector.successor_codebook", {V, R}, w.selector.successor_codebook);
    visit("candidate_selector.hidden_projection.weight", {R, H}, w.selector.hidden_projection);
  }
  if (r > 0) {
    visit("markov_head.markov_w1.weight", {V, r}, w.markov.w1);
    visit("markov_head.markov_w2.weight", {own, r}, w.markov.w2);
  }
  if (r > 0 && c.markov_head != MarkovHead::vanilla) {
    const bool rnn = c.markov_head == MarkovHead::rnn;
    const std::string at = rnn ? "markov_head.joint_proj." : "markov_head.gate_proj.";
    const int64_t out = rnn ? 3 * r : r, in = rnn ? 2 * r + H : H + r;
    visit(at + "weight", {out, in}, w.markov.proj);
    visit(at + "bias", {out}, w.markov.bias);
  }
  if (!c.confidence_head) return;
  visit("confidence_head.proj.weight", {1, H + (c.confidence_with_markov ? r : 0)}, w.confidence);
  visit("confidence_head.proj.bias", {1}, w.confidence_bias);
}

template <class AnyWeights, class Visit>
void visit_all(AnyWeights& w, const Visit& visit) {
  const BlockConfig& c = w.config;
  const int64_t H = c.hidden_size;
  visit("fc.weight", {H, static_cast<int64_t>(c.target_layer_ids.size()) * H}, w.fc);
  visit("hidden_norm.weight", {H}, w.hidden_norm);
  for (size_t i = 0; i < w.layers.size(); i++) visit_layer(c, fmt::format("layers.{}.", i), w.layers[i], visit);
  visit("norm.weight", {H}, w.norm);
  visit_heads(w, visit);
}

BlockWeights skeleton(const BlockConfig& config) {
  BlockWeights w;
  w.config = config;
  w.layers.resize(config.layers.size());
  return w;
}

// Frozen copies of what is the target's, and maps that follow from d2t.
bool is_the_targets(std::string name) {
  if (name.starts_with("model.")) name.erase(0, std::strlen("model."));
  const char* names[] = {
      "embed_tokens.weight", "lm_head.weight", "verifier_norm.weight", "verifier_lm_head.weight", "t2d", "d2t"};
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

class Binder : TensorBinder {
 public:
  Binder(const TensorSource& source, const BlockConfig& config) : TensorBinder(source), config_(config) {}

  template <class Field>
  void operator()(const std::string& name, const Shape& shape, Field& field) {
    const std::string found = find_name(name);
    const TensorRef* tensor = find(found, shape);
    if (!tensor) return;
    bytes_ += static_cast<int64_t>(tensor->bytes);
    if constexpr (std::is_same_v<Field, std::vector<int32_t>>) {
      assign_ids(found, *tensor, field);
    } else if (accepts(found, *tensor, false)) {
      if constexpr (std::is_same_v<Field, WeightMatrix>) {
        assign(*tensor, field.values);
      } else {
        assign(*tensor, field);
      }
    }
  }
  int64_t bytes() const { return bytes_; }

  // Reports; to be called after all fields were visited.
  void finish(std::vector<std::string>& notices) {
    int64_t skipped = 0;
    for (const std::string& name : source_.names()) {
      if (is_expected(name)) continue;
      if (is_the_targets(name)) {
        skipped++;
      } else {
        add_problem(name + " is unexpected");
      }
    }
    if (skipped > 0)
      notices.push_back(fmt::format("{}: {} copies of the target's tensors are skipped", config_.where, skipped));
    report(fmt::format("the drafter's weights do not fit {}", config_.where));
  }

 private:
  // As the source spells it: with or without the prefix, or under the other name that some files have.
  std::string find_name(const std::string& name) const {
    const char* other = name == "fc.weight"            ? "encoder.fc.weight"
                        : name == "hidden_norm.weight" ? "encoder.output_norm_enc.weight"
                                                       : "";
    for (const std::string& known : {name, std::string(other)}) {
      for (const char* prefix : {"", "model."}) {
        if (source_.find(prefix + known)) return prefix + known;
      }
    }
    return name;
  }

  // d2t: id i of the drafter is the target's i + d2t[i].
  void assign_ids(const std::string& name, const TensorRef& tensor, std::vector<int32_t>& target_ids) {
    if (tensor.foreign_dtype != "I64") return add_problem(fmt::format("{} is not of element type I64", name));
    std::vector<bool> seen(static_cast<size_t>(config_.vocab_size));
    for (int64_t i = 0; i < tensor.shape[0]; i++) {
      int64_t offset, id;
      std::memcpy(&offset, static_cast<const char*>(tensor.data) + i * 8, sizeof offset);
      if (__builtin_add_overflow(offset, i, &id) || id < 0 || id >= config_.vocab_size) {
        return add_problem(
            fmt::format("{}[{}] is {}, which leads out of the target's {} ids", name, i, offset, config_.vocab_size));
      }
      if (seen[static_cast<size_t>(id)])
        return add_problem(fmt::format("{}[{}] leads to the target's id {}, as another does", name, i, id));
      seen[static_cast<size_t>(id)] = true;
      target_ids.push_back(static_cast<int32_t>(id));
    }
  }

  const BlockConfig& config_;
  int64_t bytes_ = 0;
};

}  // namespace

std::vector<TensorSpec> expected_tensors(const BlockConfig& config) {
  std::vector<TensorSpec> list;
  BlockWeights nothing = skeleton(config);
  visit_all(nothing, [&](std::string name, Shape shape, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    TensorSpec spec{.name = std::move(name),
                    .shape = std::move(shape),
                    .is_matrix = std::is_same_v<Field, View<2>> || std::is_same_v<Field, WeightMatrix>};
    if (!spec.is_matrix) spec.copied = spec.elements() * static_cast<int64_t>(sizeof(float));
    list.push_back(std::move(spec));
  });
  return list;
}

BlockWeights bind_block_weights(const BlockConfig& config, std::shared_ptr<const TensorSource> source) {
  check(source != nullptr, "bind_block_weights: source is null");
  BlockWeights w = skeleton(config);
  Binder binder(*source, w.config);
  visit_all(w, [&](const std::string& name, const Shape& shape, auto& field) { binder(name, shape, field); });
  binder.finish(w.notices);
  w.bytes = binder.bytes();
  w.source = std::move(source);
  return w;
}

BlockWeights load_block_weights(const std::filesystem::path& folder, const BlockConfig& config) {
  return bind_block_weights(config, std::make_shared<SafeTensors>(SafeTensors::open(folder)));
}

std::vector<NonFinite> non_finite(const BlockWeights& weights) {
  NonFiniteScan scan;
  visit_all(weights, [&](const std::string& name, const Shape&, const auto& field) {
    using Field = std::remove_cvref_t<decltype(field)>;
    if constexpr (!std::is_same_v<Field, std::vector<int32_t>>) scan(name, field);
  });
  return std::move(scan.list);
}

}  // namespace deltaring
