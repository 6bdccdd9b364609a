#include "model/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "loader_testing.h"
#include "model/random_weights.h"
#include "model/safetensors.h"

namespace deltaring {
namespace {

using testing::EditedSource;
using testing::expect_error;
using testing::json;
using testing::small_config;

ModelConfig small(const json& change = json::object()) {
  json document = small_config();
  document.merge_patch(change);
  return parse_model_config(document.dump(), "config.json");
}

std::shared_ptr<EditedSource> edited(const TensorSource& base) { return std::make_shared<EditedSource>(base); }

TEST(Weights, TinyPyBindsWithoutCopy) {
  const auto file = std::make_shared<SafeTensors>(SafeTensors::open(testing::tiny_py()));
  const ModelConfig config = load_model_config(testing::tiny_py());
  const Weights w = bind_weights(config, file);
  EXPECT_EQ(w.prefix, "model.");
  EXPECT_TRUE(w.notices.empty());
  EXPECT_EQ(w.layers.size(), 8u);
  EXPECT_EQ(w.lm_head.data, w.embed_tokens.data);
  ASSERT_TRUE(w.mtp);
  EXPECT_EQ(w.mtp->fc.values.shape, (std::array<int64_t, 2>{256, 512}));
  EXPECT_EQ(w.mtp->layer.kind, LayerKind::full_attention);

  const GdnWeights& gdn = w.layers[0].gdn;
  const TensorRef& qkv = *file->find("model.layers.0.linear_attn.in_proj_qkv.weight");
  EXPECT_EQ(gdn.in_proj_qkv.values.data, qkv.data);
  EXPECT_EQ(gdn.in_proj_qkv.values.dtype, DType::bf16);
  EXPECT_EQ(gdn.in_proj_qkv.values.stride, (std::array<int64_t, 2>{256, 1}));
  const TensorRef& conv = *file->find("model.layers.0.linear_attn.conv1d.weight");
  ASSERT_EQ(gdn.conv.size(), 1280u * 4);
  for (int64_t i = 0; i < 1280 * 4; i++) {
    ASSERT_EQ(gdn.conv[static_cast<size_t>(i)], load_as_float(conv.data, conv.dtype, i));
  }
  EXPECT_EQ(w.layers[3].attention.q_proj.values.shape, (std::array<int64_t, 2>{512, 256}));
  EXPECT_TRUE(w.layers[3].gdn.conv.empty());
  EXPECT_TRUE(non_finite(w).empty());
}

TEST(Weights, RandDenseIsUntiedWithF32Gates) {
  const Weights w = load_weights(testing::rand_dense(), load_model_config(testing::rand_dense()));
  EXPECT_NE(w.lm_head.data, w.embed_tokens.data);
  EXPECT_FALSE(w.mtp);
  EXPECT_EQ(w.layers[0].gdn.norm.size(), 128u);
  EXPECT_EQ(w.source->find("model.layers.0.linear_attn.norm.weight")->dtype, DType::f32);
  EXPECT_EQ(w.source->find("model.layers.0.linear_attn.dt_bias")->dtype, DType::bf16);
}

TEST(Weights, TheSourceOutlivesItsOwner) {
  Weights w;
  {
    const auto source = std::make_shared<RandomWeights>(small(), DType::f32, 1);
    w = bind_weights(small(), source);
  }
  EXPECT_NE(*w.embed_tokens.f32(15, 7), 0.0f);
}

TEST(Weights, ExpectedTensorsAreThoseOfTheFile) {
  const SafeTensors file = SafeTensors::open(testing::tiny_py());
  const auto specs = expected_tensors(load_model_config(testing::tiny_py()));
  EXPECT_EQ(specs.size(), file.names().size());
  for (const TensorSpec& spec : specs) {
    const TensorRef* tensor = file.find(spec.name);
    ASSERT_NE(tensor, nullptr) << spec.name;
    EXPECT_EQ(tensor->shape, spec.shape) << spec.name;
    EXPECT_EQ(spec.is_matrix, spec.shape.size() == 2) << spec.name;
  }
}

TEST(Weights, EveryPrefixIsFound) {
  const RandomWeights base(small(), DType::bf16, 1);
  for (const std::string prefix : {"model.", "model.language_model.", "language_model.model."}) {
    const auto source = edited(base);
    for (const auto& name : base.names()) {
      if (name.starts_with("model.")) source->rename(name, prefix + name.substr(6));
    }
    source->tensors["model.visual.patch_embed.proj.weight"] = *base.find("mtp.fc.weight");
    source->tensors["visual.merger.norm.bias"] = *base.find("mtp.fc.weight");
    const Weights w = bind_weights(small(), source);
    EXPECT_EQ(w.prefix, prefix);
    ASSERT_EQ(w.notices.size(), 1u);
    EXPECT_NE(w.notices[0].find("2 tensors of the vision tower"), std::string::npos);
  }
}

TEST(Weights, PrefixMustBeThereOnce) {
  const RandomWeights base(small(), DType::bf16, 1);
  const auto source = edited(base);
  source->tensors["language_model.model.embed_tokens.weight"] = *base.find("model.embed_tokens.weight");
  expect_error(ErrorKind::corrupt, {"model.", "language_model.model."}, [&] { bind_weights(small(), source); });
  source->tensors.clear();
  expect_error(ErrorKind::not_found, {"embed_tokens.weight", "model.language_model."},
               [&] { bind_weights(small(), source); });
  expect_error(ErrorKind::invalid_argument, {"source is null"}, [] { bind_weights(small(), nullptr); });
}

TEST(Weights, HeadOfAnUntiedMlxStyleName) {
  const ModelConfig untied = small({{"tie_word_embeddings", false}});
  const RandomWeights base(untied, DType::bf16, 1);
  const auto source = edited(base);
  for (const auto& name : base.names()) {
    if (!name.starts_with("mtp.")) source->rename(name, "language_model." + name);
  }
  EXPECT_EQ(bind_weights(untied, source).lm_head.data, base.find("lm_head.weight")->data);
}

TEST(Weights, Tie) {
  const ModelConfig untied = small({{"tie_word_embeddings", false}}), unset = small({{"tie_word_embeddings", nullptr}});
  const auto with = std::make_shared<RandomWeights>(untied, DType::bf16, 1);
  const auto without = std::make_shared<RandomWeights>(small(), DType::bf16, 1);
  EXPECT_EQ(bind_weights(unset, with).config.tie_word_embeddings, false);
  EXPECT_EQ(bind_weights(unset, with).lm_head.data, with->find("lm_head.weight")->data);
  EXPECT_EQ(bind_weights(unset, without).config.tie_word_embeddings, true);
  EXPECT_EQ(bind_weights(unset, without).lm_head.data, without->find("model.embed_tokens.weight")->data);
  expect_error(ErrorKind::corrupt, {"tie_word_embeddings is true", "to false to use lm_head.weight", "remove"},
               [&] { bind_weights(small(), with); });
  expect_error(ErrorKind::corrupt, {"tie_word_embeddings is false", "lm_head.weight is missing"},
               [&] { bind_weights(untied, without); });
}

TEST(Weights, Mtp) {
  const ModelConfig without = small({{"mtp_num_hidden_layers", 0}});
  const Weights w = bind_weights(small(), std::make_shared<RandomWeights>(without, DType::bf16, 1));
  EXPECT_FALSE(w.mtp);
  EXPECT_EQ(w.config.mtp_num_hidden_layers, 0);
  ASSERT_EQ(w.notices.size(), 1u);
  EXPECT_NE(w.notices[0].find("no mtp.* tensors"), std::string::npos);
  expect_error(ErrorKind::corrupt, {"mtp.fc.weight", "mtp_num_hidden_layers is 0"},
               [&] { bind_weights(without, std::make_shared<RandomWeights>(small(), DType::bf16, 1)); });
}

TEST(Weights, EveryMissingTensorIsNamed) {
  const ModelConfig config = small({{"tie_word_embeddings", false}});
  const RandomWeights base(config, DType::bf16, 1);
  for (const auto& name : base.names()) {
    const auto source = edited(base);
    source->tensors.erase(name);
    const bool embedding = name == "model.embed_tokens.weight";
    expect_error(embedding ? ErrorKind::not_found : ErrorKind::corrupt,
                 {embedding ? "embed_tokens.weight" : name + " is missing"}, [&] { bind_weights(config, source); });
  }
}

TEST(Weights, EveryMisshapedTensorIsNamed) {
  const RandomWeights base(small(), DType::bf16, 1);
  for (const auto& name : base.names()) {
    const auto source = edited(base);
    source->tensors[name].shape.push_back(1);
    expect_error(ErrorKind::corrupt, {"1 problem: " + name + " has shape [", ", 1], expected ["},
                 [&] { bind_weights(small(), source); });
  }
}

TEST(Weights, ForeignElementTypesAreNamed) {
  const RandomWeights base(small(), DType::bf16, 1);
  for (const auto& name : base.names()) {
    const auto source = edited(base);
    source->tensors[name].foreign_dtype = "F8_E5M2";
    expect_error(ErrorKind::unsupported, {name + " has element type F8_E5M2", "F32, BF16"},
                 [&] { bind_weights(small(), source); });
  }
}

TEST(Weights, HalfPrecisionCheckpointsBind) {
  const auto source = std::make_shared<RandomWeights>(small(), DType::f16, 1);
  EXPECT_NO_THROW(bind_weights(small(), source));
}

TEST(Weights, ManyProblemsAreCountedFiveAreListed) {
  const RandomWeights base(small(), DType::bf16, 1);
  const auto source = edited(base);
  source->tensors["model.layers.0.extra.weight"] = *base.find("mtp.fc.weight");
  expect_error(ErrorKind::corrupt, {"1 problem: model.layers.0.extra.weight is unexpected"},
               [&] { bind_weights(small(), source); });
  for (const auto& name : base.names()) {
    if (name.starts_with("model.layers.1.")) source->rename(name, "model.layers.2." + name.substr(15));
  }
  expect_error(ErrorKind::corrupt, {"23 problems: model.layers.1.input_layernorm.weight is missing", "; ..."},
               [&] { bind_weights(small(), source); });
}

TEST(Weights, NonFiniteValuesAreAcceptedAndReported) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto source = std::make_shared<RandomWeights>(small(), dtype, 1);
    const auto poison = [&](const char* name, int64_t i, float x) {
      const TensorRef& tensor = *source->find(name);
      store_from_float(const_cast<void*>(tensor.data), tensor.dtype, i, x);
    };
    EXPECT_TRUE(non_finite(bind_weights(small(), source)).empty());
    poison("model.embed_tokens.weight", 0, nan);
    poison("model.embed_tokens.weight", 127, -inf);
    poison("model.layers.0.linear_attn.A_log", 1, inf);
    poison("mtp.norm.weight", 7, nan);
    const auto found = non_finite(bind_weights(small(), source));
    ASSERT_EQ(found.size(), 3u);
    EXPECT_EQ(found[0].name, "model.embed_tokens.weight");
    EXPECT_EQ(found[0].count, 2);
    EXPECT_EQ(found[0].size, 128);
    EXPECT_EQ(found[1].name, "model.layers.0.linear_attn.A_log");
    EXPECT_EQ(found[1].count, 1);
    EXPECT_EQ(found[2].name, "mtp.norm.weight");
  }
}

struct Moments {
  double mean, deviation, low, high;
};

Moments moments(const TensorRef& tensor) {
  const auto size = static_cast<int64_t>(tensor.bytes / size_of(tensor.dtype));
  Moments m{0, 0, 1e30, -1e30};
  for (int64_t i = 0; i < size; i++) {
    const double x = load_as_float(tensor.data, tensor.dtype, i);
    m.mean += x / static_cast<double>(size);
    m.deviation += x * x / static_cast<double>(size);
    m.low = std::min(m.low, x);
    m.high = std::max(m.high, x);
  }
  m.deviation = std::sqrt(m.deviation - m.mean * m.mean);
  return m;
}

TEST(RandomWeights, HaveTheirDistributions) {
  const ModelConfig config = small({{"hidden_size", 256},
                                    {"linear_num_key_heads", 16},
                                    {"linear_num_value_heads", 128},
                                    {"linear_value_head_dim", 64}});
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const RandomWeights random(config, dtype, 7);
    const auto of = [&](const std::string& name) { return moments(*random.find("model.layers." + name)); };
    const Moments norm = of("0.input_layernorm.weight");
    EXPECT_NEAR(norm.mean, 0, 0.08);
    EXPECT_NEAR(norm.deviation, 0.3, 0.06);
    const Moments gated = of("0.linear_attn.norm.weight");
    EXPECT_NEAR(gated.mean, 1, 0.15);
    EXPECT_NEAR(gated.deviation, 0.3, 0.12);
    const Moments bias = of("0.linear_attn.dt_bias");
    EXPECT_NEAR(bias.mean, -1, 0.6);
    EXPECT_GE(bias.low, -4);
    EXPECT_LE(bias.high, 2);
    const Moments decay = of("0.linear_attn.A_log");
    EXPECT_GE(decay.low, std::log(0.01) - 1e-3);
    EXPECT_LE(decay.high, std::log(16) + 1e-3);
    EXPECT_GT(decay.high, 2.5);
    EXPECT_NEAR(of("0.linear_attn.conv1d.weight").deviation, 0.5, 0.02);
    EXPECT_NEAR(of("1.mlp.gate_proj.weight").deviation, 1 / std::sqrt(256.0), 2e-3);
    EXPECT_NEAR(of("1.mlp.down_proj.weight").deviation, 1 / std::sqrt(12.0), 1e-2);
    EXPECT_NEAR(of("0.linear_attn.in_proj_qkv.weight").mean, 0, 1e-3);
  }
}

TEST(RandomWeights, AreAFunctionOfTheSeed) {
  const RandomWeights a(small(), DType::bf16, 3), b(small(), DType::bf16, 3), c(small(), DType::bf16, 4);
  for (const auto& name : a.names()) {
    const TensorRef &x = *a.find(name), &y = *b.find(name), &z = *c.find(name);
    EXPECT_EQ(std::memcmp(x.data, y.data, x.bytes), 0) << name;
    EXPECT_NE(std::memcmp(x.data, z.data, x.bytes), 0) << name;
  }
  const TensorRef &k = *a.find("model.layers.1.self_attn.k_proj.weight"),
                  &v = *a.find("model.layers.1.self_attn.v_proj.weight");
  EXPECT_NE(std::memcmp(k.data, v.data, k.bytes), 0);
}

}  // namespace
}  // namespace deltaring
