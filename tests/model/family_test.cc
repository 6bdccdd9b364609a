// How the kinds of the family lie in their files: experts together or one by one, interleaved projections, float8. The
// field's reports of what went wrong there have a test each.
#include <gtest/gtest.h>

#include <cstring>

#include "loader_testing.h"
#include "model/safetensors.h"
#include "model/weights.h"
#include "support/family.h"

namespace deltaring::test {
namespace {

using deltaring::testing::EditedSource;
using deltaring::testing::expect_error;

// A source with memory of its own.
struct OwningSource : EditedSource {
  explicit OwningSource(std::shared_ptr<const TensorSource> base) : EditedSource(*base), base(std::move(base)) {}

  void add(const std::string& name, DType dtype, std::vector<int64_t> shape, std::vector<std::byte> bytes) {
    const auto& kept = memory.emplace_back(std::make_unique<std::vector<std::byte>>(std::move(bytes)));
    tensors[name] = {.dtype = dtype, .shape = std::move(shape), .data = kept->data(), .bytes = kept->size()};
  }
  std::shared_ptr<const TensorSource> base;
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory;
};

std::shared_ptr<OwningSource> source_of(const ModelConfig& config, uint64_t seed = 5) {
  return std::make_shared<OwningSource>(std::make_shared<RandomWeights>(config, DType::bf16, seed));
}

std::vector<std::byte> part_of(const TensorRef& tensor, size_t parts, size_t i) {
  const auto* bytes = static_cast<const std::byte*>(tensor.data);
  return {bytes + tensor.bytes / parts * i, bytes + tensor.bytes / parts * (i + 1)};
}

// The experts under `at`, taken out of their stacks.
void split_experts(OwningSource& source, const std::string& at) {
  const TensorRef gate_up = *source.find(at + "experts.gate_up_proj"), down = *source.find(at + "experts.down_proj");
  const int64_t E = gate_up.shape[0], I = gate_up.shape[1] / 2, H = gate_up.shape[2];
  for (int64_t e = 0; e < E; e++) {
    const std::string name = fmt::format("{}experts.{}.", at, e);
    const auto parts = static_cast<size_t>(2 * E), i = static_cast<size_t>(2 * e);
    source.add(name + "gate_proj.weight", DType::bf16, {I, H}, part_of(gate_up, parts, i));
    source.add(name + "up_proj.weight", DType::bf16, {I, H}, part_of(gate_up, parts, i + 1));
    source.add(name + "down_proj.weight", DType::bf16, {H, I}, part_of(down, parts / 2, static_cast<size_t>(e)));
  }
  source.tensors.erase(at + "experts.gate_up_proj");
  source.tensors.erase(at + "experts.down_proj");
}

bool same(const WeightMatrix& a, const WeightMatrix& b) {
  return a.values.shape == b.values.shape && a.values.dtype == b.values.dtype &&
         std::memcmp(a.values.data, b.values.data, static_cast<size_t>(a.N() * a.K()) * size_of(a.values.dtype)) == 0;
}

TEST(Experts, FusedAndSplitAreTheSameWeightsAndNeitherIsCopied) {
  const auto fused = source_of(moe_config()), split = source_of(moe_config());
  split_experts(*split, "model.layers.0.mlp.");
  split_experts(*split, "model.layers.3.mlp.");
  split_experts(*split, "mtp.layers.0.mlp.");  // the head of Qwen3.5 has them one by one, that of 3.6 together
  const Weights a = bind_weights(moe_config(), fused), b = bind_weights(moe_config(), split);
  EXPECT_TRUE(a.layers[0].moe->fused);
  EXPECT_FALSE(b.layers[0].moe->fused);
  EXPECT_TRUE(b.layers[1].moe->fused);
  EXPECT_FALSE(b.mtp->layer.moe->fused);
  for (const auto& [x, y] : {std::pair(&a.layers[0], &b.layers[0]), std::pair(&a.mtp->layer, &b.mtp->layer)}) {
    ASSERT_EQ(x->moe->experts.size(), 6u);
    for (size_t e = 0; e < 6; e++) {
      EXPECT_TRUE(same(x->moe->experts[e].gate, y->moe->experts[e].gate)) << e;
      EXPECT_TRUE(same(x->moe->experts[e].up, y->moe->experts[e].up)) << e;
      EXPECT_TRUE(same(x->moe->experts[e].down, y->moe->experts[e].down)) << e;
    }
  }
  const auto* stack = static_cast<const std::byte*>(fused->find("model.layers.0.mlp.experts.gate_up_proj")->data);
  EXPECT_EQ(a.layers[0].moe->experts[2].up.values.data, stack + (2 * 48 + 24) * 32 * 2);
  EXPECT_EQ(b.layers[0].moe->experts[2].up.values.data,
            split->find("model.layers.0.mlp.experts.2.up_proj.weight")->data);
  EXPECT_EQ(a.layers[0].moe->experts.back().gate.values.data,
            fused->find("model.layers.0.mlp.shared_expert.gate_proj.weight")->data);
  EXPECT_FALSE(a.reordered || b.reordered);
  EXPECT_TRUE(non_finite(b).empty());
}

TEST(Experts, WhatIsMissingOrMixedIsNamed) {
  const auto without = source_of(moe_config());
  without->tensors.erase("model.layers.1.mlp.shared_expert_gate.weight");
  expect_error(ErrorKind::corrupt, {"1 problem: model.layers.1.mlp.shared_expert_gate.weight is missing"},
               [&] { bind_weights(moe_config(), without); });
  const auto half = source_of(moe_config());
  split_experts(*half, "model.layers.1.mlp.");
  half->tensors.erase("model.layers.1.mlp.experts.3.down_proj.weight");
  expect_error(ErrorKind::corrupt, {"1 problem: model.layers.1.mlp.experts.3.down_proj.weight is missing"},
               [&] { bind_weights(moe_config(), half); });
  const auto both = source_of(moe_config());
  both->tensors["model.layers.1.mlp.experts.0.up_proj.weight"] = *both->find("mtp.fc.weight");
  expect_error(ErrorKind::corrupt, {"model.layers.1.mlp.experts.0.up_proj.weight is unexpected"},
               [&] { bind_weights(moe_config(), both); });
  const auto transposed = source_of(moe_config());  // as some exports have them
  std::swap(transposed->tensors["model.layers.2.mlp.experts.down_proj"].shape[1],
            transposed->tensors["model.layers.2.mlp.experts.down_proj"].shape[2]);
  expect_error(ErrorKind::corrupt, {"model.layers.2.mlp.experts.down_proj has shape [5, 24, 32], expected [5, 32, 24]"},
               [&] { bind_weights(moe_config(), transposed); });
}

// Row indices of Qwen3-Next's projections, straight from its layout.
TEST(Interleaved, EveryRowFindsItsPlace) {
  const ModelConfig c = next_config();
  const RandomWeights kept(c, DType::bf16, 5);
  const Weights w = bind_weights(c, std::make_shared<EditedSource>(kept));
  const int64_t Hk = 2, r = 3, K = 16, V = 16, G = 2 * K + 2 * r * V;
  const GdnWeights& gdn = w.layers[1].gdn;
  const TensorRef &qkvz = *kept.find("model.layers.1.linear_attn.in_proj_qkvz.weight"),
                  &ba = *kept.find("model.layers.1.linear_attn.in_proj_ba.weight");
  const auto row_is = [&](const WeightMatrix& have, int64_t row, const TensorRef& file, int64_t from) {
    const size_t bytes = 32 * 2;
    return std::memcmp(have.values.address(have.values.offset(row)),
                       static_cast<const std::byte*>(file.data) + static_cast<size_t>(from) * bytes, bytes) == 0;
  };
  for (int64_t g = 0; g < Hk; g++) {
    for (int64_t d = 0; d < K; d++) {
      EXPECT_TRUE(row_is(gdn.in_proj_qkv, g * K + d, qkvz, g * G + d));
      EXPECT_TRUE(row_is(gdn.in_proj_qkv, Hk * K + g * K + d, qkvz, g * G + K + d));
    }
  }
  for (int64_t j = 0; j < Hk * r; j++) {
    for (int64_t d = 0; d < V; d++) {
      const int64_t at = (j / r) * G + 2 * K + (j % r) * V + d;
      EXPECT_TRUE(row_is(gdn.in_proj_qkv, 2 * Hk * K + j * V + d, qkvz, at));
      EXPECT_TRUE(row_is(gdn.in_proj_z, j * V + d, qkvz, at + r * V));
    }
    EXPECT_TRUE(row_is(gdn.in_proj_b, j, ba, (j / r) * 2 * r + j % r));
    EXPECT_TRUE(row_is(gdn.in_proj_a, j, ba, (j / r) * 2 * r + r + j % r));
  }
  EXPECT_EQ(gdn.in_proj_qkv.N(), c.conv_dim());
  EXPECT_EQ(gdn.in_proj_z.N(), c.value_dim());
  EXPECT_EQ(gdn.in_proj_a.N(), 6);
  ASSERT_TRUE(w.reordered);
  EXPECT_FALSE(w.layers[0].moe.has_value());
  EXPECT_TRUE(w.layers[1].moe.has_value());
  EXPECT_FALSE(w.layers[3].moe.has_value());
  EXPECT_TRUE(w.mtp->layer.moe.has_value());
}

TEST(Interleaved, OutlivesACopyOfTheWeights) {
  std::optional<Weights> first = random_model(next_config(), 3);
  const Weights copy = *first;
  const float before = *copy.layers[0].gdn.in_proj_z.values.f32(5, 3);
  first.reset();
  EXPECT_EQ(*copy.layers[0].gdn.in_proj_z.values.f32(5, 3), before);
}

TEST(Interleaved, Float8BlocksMoveWithTheirRows) {
  const auto family_of = family();
  const ModelConfig& c = family_of[4].second;
  ASSERT_EQ(family_of[4].first, "next_fp8");
  const auto source = std::make_shared<RandomWeights>(c, DType::bf16, 8);
  const Weights w = bind_weights(c, source);
  const TensorRef& scales = *source->find("model.layers.0.linear_attn.in_proj_qkvz.weight_scale_inv");
  ASSERT_EQ(scales.shape, (std::vector<int64_t>{2 * 8, 2}));  // of a key head: Q, K, three V, three Z
  const View<2> have = w.layers[0].gdn.in_proj_qkv.scales, z = w.layers[0].gdn.in_proj_z.scales;
  const int64_t qkv_rows[] = {0, 8, 1, 9, 2, 3, 4, 10, 11, 12}, z_rows[] = {5, 6, 7, 13, 14, 15};
  const auto* stored = static_cast<const float*>(scales.data);
  for (int64_t i = 0; i < 10; i++) EXPECT_EQ(*have.f32(i, 1), stored[qkv_rows[i] * 2 + 1]) << i;
  for (int64_t i = 0; i < 6; i++) EXPECT_EQ(*z.f32(i, 0), stored[z_rows[i] * 2]) << i;

  ModelConfig narrow = c;
  narrow.linear_key_head_dim = 64;
  expect_error(ErrorKind::unsupported, {"float8 in_proj_qkvz", "multiples of 128", "parts of 64", "bfloat16"},
               [&] { random_model(narrow, 1); });
}

// The same model with its float8 matrices as the float32 ones they stand for.
std::shared_ptr<OwningSource> dequantised(std::shared_ptr<const TensorSource> codes) {
  const auto source = std::make_shared<OwningSource>(codes);
  for (const std::string& name : codes->names()) {
    const TensorRef& tensor = *codes->find(name);
    if (tensor.dtype != DType::f8_e4m3) continue;
    const TensorRef& scales = *codes->find(name + "_scale_inv");
    const int64_t N = tensor.shape[0], K = tensor.shape[1];
    std::vector<std::byte> bytes(static_cast<size_t>(N * K) * sizeof(float));
    for (int64_t i = 0; i < N * K; i++) {
      const float scale = load_as_float(scales.data, scales.dtype, i / K / 128 * scales.shape[1] + i % K / 128);
      store_from_float(bytes.data(), DType::f32, i, load_as_float(tensor.data, tensor.dtype, i) * scale);
    }
    source->tensors.erase(name + "_scale_inv");
    source->add(name, DType::f32, {N, K}, std::move(bytes));
  }
  return source;
}

TEST(Fp8, ComputesTheModelThatItsCodesAndScalesStandFor) {
  for (const auto& [name, config] : family()) {
    if (!config.fp8) continue;
    const auto codes = std::make_shared<RandomWeights>(config, DType::bf16, 4);
    const auto logits = [&](std::shared_ptr<const TensorSource> source) {
      Rig rig(bind_weights(config, std::move(source)), {});
      rig.start({3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9});
      return std::vector<float>(rig.stepper->logits().f32(0), rig.stepper->logits().f32(0) + 48);
    };
    EXPECT_EQ(logits(codes), logits(dequantised(codes))) << name;
  }
}

TEST(Fp8, IsMappedAndNeverWidened) {
  const auto source = std::make_shared<RandomWeights>(fp8_config(), DType::bf16, 4);
  const Weights w = bind_weights(fp8_config(), source);
  const WeightMatrix& gate = w.layers[0].mlp.gate_proj;
  EXPECT_EQ(gate.values.dtype, DType::f8_e4m3);
  EXPECT_EQ(gate.values.data, source->find("model.layers.0.mlp.gate_proj.weight")->data);
  EXPECT_EQ(gate.scales.data, source->find("model.layers.0.mlp.gate_proj.weight_scale_inv")->data);
  EXPECT_EQ(gate.scales.shape, (std::array<int64_t, 2>{2, 2}));  // of 200 x 160
  EXPECT_EQ(w.layers[1].mlp.gate_proj.values.dtype, DType::bf16);
  EXPECT_FALSE(w.layers[1].mlp.gate_proj.scales);
  EXPECT_EQ(w.mtp->fc.values.dtype, DType::bf16);
  EXPECT_EQ(w.mtp->layer.attention.q_proj.values.dtype, DType::f8_e4m3);
  EXPECT_EQ(w.lm_head.dtype, DType::bf16);
}

TEST(Fp8, ScalesMayBe16BitFloats) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const auto source = source_of(fp8_config());
    std::vector<std::byte> scales(4 * size_of(dtype));
    for (int64_t i = 0; i < 4; i++) store_from_float(scales.data(), dtype, i, 0.25f * static_cast<float>(i + 1));
    source->add("model.layers.0.mlp.gate_proj.weight_scale_inv", dtype, {2, 2}, scales);
    EXPECT_EQ(bind_weights(fp8_config(), source).layers[0].mlp.gate_proj.scales.dtype, dtype);
  }
}

TEST(Fp8, NonFiniteCodesAndScalesAreReported) {
  const auto source = source_of(fp8_config());
  std::vector<std::byte> codes = part_of(*source->find("model.layers.2.self_attn.k_proj.weight"), 1, 0);
  codes[7] = std::byte{0x7f}, codes[8] = std::byte{0xff}, codes[9] = std::byte{0x7e};
  source->add("model.layers.2.self_attn.k_proj.weight", DType::f8_e4m3, {16, 160}, codes);
  std::vector<std::byte> scales(8);
  store_from_float(scales.data(), DType::f32, 1, INFINITY);
  source->add("model.layers.2.self_attn.v_proj.weight_scale_inv", DType::f32, {1, 2}, scales);
  const auto found = non_finite(bind_weights(fp8_config(), source));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name, "model.layers.2.self_attn.k_proj.weight");
  EXPECT_EQ(found[0].count, 2);
  EXPECT_EQ(found[1].name, "model.layers.2.self_attn.v_proj.weight_scale_inv");
  EXPECT_EQ(found[1].size, 2);
}

// Field report I1: a loader skipped scales that it did not know and ran GDN layers on raw codes.
TEST(FieldReports, I1_AQuantisedTensorWithoutItsScaleIsRefusedByName) {
  const RandomWeights base(fp8_config(), DType::bf16, 5);
  for (const std::string& name : base.names()) {
    if (!name.ends_with("_scale_inv")) continue;
    const auto gone = std::make_shared<EditedSource>(base), misshaped = std::make_shared<EditedSource>(base);
    gone->tensors.erase(name);
    expect_error(ErrorKind::corrupt, {"1 problem: " + name + " is missing"}, [&] { bind_weights(fp8_config(), gone); });
    gone->tensors[name.substr(0, name.size() - 4)] = *base.find(name);  // weight_scale: another format's name
    expect_error(ErrorKind::corrupt, {"2 problems: " + name + " is missing", "weight_scale is unexpected"},
                 [&] { bind_weights(fp8_config(), gone); });
    misshaped->tensors[name].shape.back()++;
    expect_error(ErrorKind::corrupt, {"1 problem: " + name + " has shape ["},
                 [&] { bind_weights(fp8_config(), misshaped); });
  }
}

TEST(FieldReports, I1_ScalesOfAnotherFormatAreRefusedByName) {
  const auto source = source_of(fp8_config());
  source->tensors["model.layers.0.mlp.up_proj.weight_scale_inv"].foreign_dtype = "F8_E8M0";
  expect_error(ErrorKind::unsupported,
               {"model.layers.0.mlp.up_proj.weight_scale_inv has element type F8_E8M0, supported: F32, BF16, F16"},
               [&] { bind_weights(fp8_config(), source); });
}

// TensorRT-Model-Connect#1117, vllm#40252: lists of what is quantised that do not name what the file holds.
TEST(FieldReports, I1_WhatTheConfigDeniesIsRefusedByName) {
  ModelConfig plain = fp8_config(), listed = fp8_config();
  plain.fp8.reset();
  listed.fp8->modules_to_not_convert.push_back("model.layers.0.linear_attn.in_proj_z");
  const auto source = source_of(fp8_config());
  expect_error(ErrorKind::corrupt,
               {"model.layers.0.linear_attn.in_proj_qkv.weight is F8_E4M3, but config.json has no quantization_config"},
               [&] { bind_weights(plain, source); });
  expect_error(ErrorKind::corrupt,
               {"1 problem: model.layers.0.linear_attn.in_proj_z.weight is F8_E4M3, but modules_to_not_convert names"},
               [&] { bind_weights(listed, source); });
  const auto embedding = source_of(fp8_config());
  embedding->tensors["lm_head.weight"] = {
      .dtype = DType::f8_e4m3, .shape = {48, 160}, .data = embedding->find("lm_head.weight")->data, .bytes = 48 * 160};
  expect_error(ErrorKind::unsupported, {"lm_head.weight has element type F8_E4M3, supported: F32, BF16, F16"},
               [&] { bind_weights(fp8_config(), embedding); });
}

TEST(FieldReports, I1_ScalesWithoutCodesAreUnexpected) {
  const auto source = source_of(mini_config());
  source->tensors["model.layers.0.mlp.up_proj.weight_scale_inv"] = *source->find("mtp.norm.weight");
  expect_error(ErrorKind::corrupt, {"model.layers.0.mlp.up_proj.weight_scale_inv is unexpected"},
               [&] { bind_weights(mini_config(), source); });
}

// Field report I4: A_log and dt_bias stored in 16 bit changed the decay.
TEST(FieldReports, I4_GatesAreFloat32AfterLoading) {
  for (const auto& [name, config] : family()) {
    const auto source = std::make_shared<RandomWeights>(config, DType::bf16, 6);
    const Weights w = bind_weights(config, source);
    const TensorRef &A_log = *source->find("model.layers.0.linear_attn.A_log"),
                    &dt_bias = *source->find("model.layers.0.linear_attn.dt_bias");
    for (size_t i = 0; i < w.layers[0].gdn.A_log.size(); i++) {
      EXPECT_EQ(w.layers[0].gdn.A_log[i], load_as_float(A_log.data, A_log.dtype, static_cast<int64_t>(i))) << name;
      EXPECT_EQ(w.layers[0].gdn.dt_bias[i], load_as_float(dt_bias.data, dt_bias.dtype, static_cast<int64_t>(i)));
    }
  }
}

// Field report I5: the head is no model of its own, it shares the embedding and the output head of the trunk.
TEST(FieldReports, I5_TheMtpHeadHasNoEmbeddingOfItsOwn) {
  for (const auto& [name, config] : family()) {
    for (const TensorSpec& tensor : expected_tensors(config)) {
      const bool own = tensor.name.starts_with("mtp.") && (tensor.name.find("embed_tokens") != std::string::npos ||
                                                           tensor.name.find("lm_head") != std::string::npos);
      EXPECT_FALSE(own) << tensor.name;
    }
    const auto source = source_of(config);
    source->tensors["mtp.embed_tokens.weight"] = *source->find("model.embed_tokens.weight");
    expect_error(ErrorKind::corrupt, {"mtp.embed_tokens.weight is unexpected"}, [&] { bind_weights(config, source); });
  }
}

TEST(BoundTensors, AreThoseOfTheFile) {
  for (const auto& [name, config] : family()) {
    const auto source = source_of(config);
    if (name == "moe") split_experts(*source, "model.layers.1.mlp.");
    const Weights w = bind_weights(config, source);
    int64_t bytes = 0, file = 0;
    const auto tensors = bound_tensors(w);
    EXPECT_EQ(tensors.size(), source->names().size()) << name;
    for (const TensorSpec& tensor : tensors) {
      ASSERT_TRUE(source->find(tensor.name)) << tensor.name;
      EXPECT_EQ(source->find(tensor.name)->shape, tensor.shape) << tensor.name;
      EXPECT_EQ(tensor.bytes(), static_cast<int64_t>(source->find(tensor.name)->bytes)) << tensor.name;
      bytes += tensor.bytes();
    }
    for (const std::string& tensor : source->names()) file += static_cast<int64_t>(source->find(tensor)->bytes);
    EXPECT_EQ(bytes, file) << name;
  }
}

}  // namespace
}  // namespace deltaring::test
