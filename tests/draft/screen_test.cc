// A screen finds the best rows of a matrix without computing all products, and drafters with one draft what they draft
// without.
#include "draft/screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/block_drafters.h"

namespace deltaring::test {
namespace {

constexpr int64_t kIds = Screen::kLeastRows + 700;

TEST(Screen, ContendersAreThoseThatCannotBeRuledOut) {
  std::vector<float> value(200), error(200, 1.0f);
  for (size_t i = 0; i < value.size(); i++) value[i] = static_cast<float>(i % 100);
  const Estimate sure{.value = value.data(), .error = error.data(), .unit = 1, .slack = 0.25f};
  EXPECT_THAT(contenders({&sure, 1}, 200, 1), ::testing::ElementsAre(99, 199));
  EXPECT_THAT(contenders({&sure, 1}, 199, 1), ::testing::ElementsAre(99));
  EXPECT_THAT(contenders({&sure, 1}, 200, 3), ::testing::ElementsAre(98, 99, 198, 199));
  const Estimate rough{.value = value.data(), .error = error.data(), .unit = 1, .slack = 1.25f};
  EXPECT_THAT(contenders({&rough, 1}, 150, 1), ::testing::ElementsAre(97, 98, 99));
  error[7] = INFINITY;
  EXPECT_THAT(contenders({&sure, 1}, 150, 1), ::testing::ElementsAre(7, 99));
  EXPECT_EQ(contenders({&sure, 1}, 3, 5).size(), 3u) << "fewer than are asked for";
  EXPECT_EQ(likeliest({&sure, 1}, 200), 99);
  const Estimate both[] = {sure, {.value = error.data(), .error = value.data(), .unit = 1, .slack = 0}};
  EXPECT_EQ(likeliest(both, 7), 6);
}

TEST(Screen, EstimatesKeepTheirBoundsAndExactProductsTheirBits) {
  Rig rig(random_model(mini_config(), 3), {});
  Decoder& decoder = rig.model.decoder();
  for (const DType dtype : {DType::bf16, DType::f32}) {
    constexpr int64_t K = 48, M = 3;
    std::mt19937 random(4);
    std::vector<std::byte> data(kIds * K * size_of(dtype));
    for (int64_t i = 0; i < kIds * K; i++)
      store_from_float(data.data(), dtype, i, static_cast<float>(random()) * 0x1p-31f - 1);
    for (const int64_t twin : {0, 5000, 9000}) {  // equal rows have equal products
      std::memcpy(data.data() + twin * K * size_of(dtype), data.data() + 77 * K * size_of(dtype), K * size_of(dtype));
    }
    store_from_float(data.data(), dtype, 123 * K + 5, NAN);
    store_from_float(data.data(), dtype, 124 * K + 5, INFINITY);
    const View<2> matrix = dense<2>(data.data(), dtype, {kIds, K});
    std::vector<float> x(M * K), products(M * kIds), estimates(M * kIds);
    for (float& e : x) e = static_cast<float>(random()) * 0x1p-29f - 4;
    for (int64_t k = 0; k < K; k++) x[K + k] = load_as_float(data.data(), dtype, 77 * K + k), x[2 * K + k] = 0;
    const View<2> rows = dense<2>(x.data(), DType::f32, {M, K}), out = dense<2>(products.data(), DType::f32, {M, kIds}),
                  about = dense<2>(estimates.data(), DType::f32, {M, kIds});
    Screen screen(matrix);
    decoder.linear(rows, matrix, out);
    ASSERT_TRUE(screen.estimate(decoder, rows, about));
    for (int64_t m = 0; m < M; m++) {
      const Estimate e = screen.row(about, m);
      for (int64_t n = 0; n < kIds; n++) {
        if (std::isinf(e.error[n])) continue;
        ASSERT_LE(std::abs(double{e.unit} * e.value[n] - *out.f32(m, n)), double{e.slack} * e.error[n])
            << m << " " << n;
      }
      const std::vector<int32_t> ids = contenders({&e, 1}, kIds, 1);
      EXPECT_THAT(ids, ::testing::IsSupersetOf({123, 124}));
      if (m == 1) {
        EXPECT_THAT(ids, ::testing::IsSupersetOf({0, 77, 5000, 9000}));
      }
      if (m < 2) {
        EXPECT_LT(ids.size(), 600u) << "a screen that rules nothing out is none";
      }
      std::vector<float> exact(ids.size());
      screen.exact(decoder, rows.rows(m, 1), ids, exact);
      for (size_t i = 0; i < ids.size(); i++) {
        if (ids[i] == 123 || ids[i] == 124) continue;
        ASSERT_EQ(exact[i], *out.f32(m, ids[i]));
      }
      int32_t best = 0;
      decoder.ops().argmax({.logits = out.rows(m, 1), .valid = kIds, .out = &best}, decoder.stream());
      EXPECT_EQ(screen.best(decoder, rows.rows(m, 1), ids), best);
    }
    x[3] = NAN;
    EXPECT_FALSE(screen.estimate(decoder, rows, about));
  }
}

class Screened : public ::testing::TestWithParam<const char*> {
 protected:
  static ModelConfig target() {
    ModelConfig c = mini_config();
    c.vocab_size = kIds, c.num_hidden_layers = 6;
    c.layer_types = {
        LayerKind::gdn, LayerKind::gdn, LayerKind::full_attention, LayerKind::gdn, LayerKind::full_attention,
        LayerKind::gdn};
    return c;
  }
  // Without the op there is no screen.
  static const OpTable& ops(bool with) {
    static OpTable without = [] {
      OpTable table = backend("cpu");
      table.linear_i8 = nullptr;
      return table;
    }();
    return with ? backend("cpu") : without;
  }
  static std::vector<Proposal> proposals(Drafter& drafter, std::span<const Sequence> sequences, int32_t drafts) {
    std::vector<DraftRequest> requests;
    for (const Sequence& s : sequences) {
      requests.push_back({.seat = s.seat, .drafts = drafts--, .tokens = s.tokens, .sampling = s.sampling, .seed = 1});
    }
    std::vector<Proposal> out(requests.size());
    drafter.propose(requests, out);
    return out;
  }
  static std::vector<Sequence> start(Rig& rig) {
    std::vector<Sequence> sequences;
    for (const int32_t first : {11, 4000, 16000}) {
      sequences.push_back(rig.start({first, 5, 77, 9000, 5, 77, 12000}));
      for (int i = 0; i < 3; i++) rig.step(sequences.back());
    }
    return sequences;
  }
  static void expect_same(const std::vector<Proposal>& got, const std::vector<Proposal>& want) {
    for (size_t i = 0; i < want.size(); i++) {
      EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
      EXPECT_EQ(got[i].confidence, want[i].confidence) << i;
      EXPECT_EQ(got[i].q, want[i].q) << i;
      EXPECT_EQ(got[i].q_ids, want[i].q_ids) << i;
    }
  }
};

TEST_P(Screened, DraftsAreTheSame) {
  const std::string kind = GetParam();
  const auto world = [&](bool with) {
    const RigOptions o{.seats = 3, .T = 8, .prefill_chunk = 64, .ops = &ops(with)};
    return std::make_unique<BlockRig>(random_model(target(), 5, DType::bf16), random_block(kind, target(), 8, 6), o);
  };
  const auto with = world(true), without = world(false);
  std::vector<Sequence> a = start(with->rig), b = start(without->rig);
  for (const float temperature : {0.0f, 1.0f}) {
    for (size_t i = 0; i < a.size(); i++) {
      ASSERT_EQ(a[i].tokens, b[i].tokens);
      a[i].sampling.temperature = b[i].sampling.temperature = i == 1 ? temperature : 0;
    }
    expect_same(proposals(*with->drafter, a, 7), proposals(*without->drafter, b, 7));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Screened, ::testing::ValuesIn(kRandomBlocks), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(ScreenedMtp, DraftsAreTheSame) {
  struct Of : Screened {
    using Screened::expect_same, Screened::ops, Screened::proposals, Screened::start, Screened::target;
  };
  std::vector<std::vector<Proposal>> got;
  for (const bool with : {true, false}) {
    Rig rig(random_model(Of::target(), 5, DType::bf16), {.seats = 3, .T = 5, .ops = &Of::ops(with)});
    MtpDrafter drafter(rig.model, rig.pool, kIds);
    rig.use(&drafter);
    got.push_back(Of::proposals(drafter, Of::start(rig), 4));
    EXPECT_EQ(got.back().front().tokens.size(), 4u);
  }
  Of::expect_same(got[0], got[1]);
}

}  // namespace
}  // namespace deltaring::test
