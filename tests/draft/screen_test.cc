// A screen finds the best rows of a matrix without computing all products, and drafters with one draft what they draft
// without.
#include "draft/screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "support/block_drafters.h"

namespace deltaring::test {
namespace {

constexpr int64_t kIds = Screen::kLeastRows + 700;

// A matrix of numbers around 0, some far out, with twins and with rows that are not finite; and vectors.
struct Product {
  static constexpr int64_t kTwin = 77;

  Product(Decoder& decoder, DType dtype, int64_t K, uint32_t seed)
      : decoder(decoder), K(K), data(static_cast<size_t>(kIds * K) * size_of(dtype)), x(kRows * K), z(kRows * kIds) {
    std::mt19937 random(seed);
    const auto number = [&] {
      const float uniform = static_cast<float>(random()) * 0x1p-31f - 1;
      return random() % 50 == 0 ? 8 * uniform : uniform;
    };
    for (int64_t i = 0; i < kIds * K; i++) store_from_float(data.data(), dtype, i, number());
    const size_t bytes = static_cast<size_t>(K) * size_of(dtype);
    for (const int64_t twin : {0, 5000, 9000}) std::memcpy(&data[twin * bytes], &data[kTwin * bytes], bytes);
    std::memset(&data[125 * bytes], 0, bytes);
    store_from_float(data.data(), dtype, 123 * K + 5, NAN);
    store_from_float(data.data(), dtype, 124 * K + 5, INFINITY);
    matrix = dense<2>(data.data(), dtype, {kIds, K});
    for (float& e : x) e = 4 * number();
    for (int64_t k = 0; k < K; k++) {
      x[K + k] = load_as_float(data.data(), dtype, kTwin * K + k), x[2 * K + k] = 0, x[3 * K + k] *= 1e-12f;
    }
    rows = dense<2>(x.data(), DType::f32, {kRows, K}), out = dense<2>(z.data(), DType::f32, {kRows, kIds});
    decoder.linear(rows, matrix, out);
  }
  static bool finite(int64_t id) { return id != 123 && id != 124; }
  // The `count`-th largest number that `sum` says of the ids.
  static float ranked(const std::function<float(int64_t)>& sum, int64_t valid, size_t count) {
    std::vector<float> list;
    for (int64_t n = 0; n < valid; n++) {
      if (finite(n)) list.push_back(sum(n));
    }
    std::nth_element(list.begin(), list.begin() + count - 1, list.end(), std::greater<>());
    return list[count - 1];
  }
  // Nobody who is as good is missing; those of whom nothing is known are there, and ids ascend.
  static void expect_all(const Ids& ids, const std::function<float(int64_t)>& sum, int64_t valid, float least) {
    EXPECT_TRUE(std::ranges::is_sorted(ids));
    EXPECT_LT(ids.back(), valid);
    for (int64_t n = 0; n < valid; n++) {
      if (finite(n) && sum(n) < least) continue;
      ASSERT_TRUE(std::ranges::binary_search(ids, static_cast<int32_t>(n))) << n << ": " << sum(n) << ", " << least;
    }
  }

  static constexpr int64_t kRows = 4;
  Decoder& decoder;
  int64_t K;
  std::vector<std::byte> data;
  std::vector<float> x, z;
  View<2> matrix, rows, out;
};

TEST(Screen, TheBestAreAmongThoseThatAreLeft) {
  for (const int threads : {1, 2}) {
    Rig rig(random_model(mini_config(), 3), {.threads = threads});
    Decoder& decoder = rig.model.decoder();
    for (const auto& [dtype, K] : {std::pair{DType::bf16, 48}, {DType::f32, 200}}) {
      Product p(decoder, dtype, K, 4);
      std::vector<float> estimates(Product::kRows * kIds);
      Screen screen(p.matrix);
      for (const int64_t valid : {kIds, kIds - 300, int64_t{130}}) {
        ASSERT_TRUE(
            screen.estimate(decoder, p.rows, 1, valid, dense<2>(estimates.data(), DType::f32, {Product::kRows, kIds})));
        for (const size_t count : {1, 16, 100}) {
          const std::vector<Ids> best = screen.best(decoder, p.rows, count);
          for (int64_t m = 0; m < Product::kRows; m++) {
            const auto z = [&](int64_t n) { return *p.out.f32(m, n); };
            Product::expect_all(best[m], z, valid, Product::ranked(z, valid, count));
            if (m == 2) {
              EXPECT_EQ(best[m].size(), valid) << "all are 0";
            } else if (valid == kIds) {
              EXPECT_LT(best[m].size(), 3 * count + 40) << "what rules nothing out is no screen";
            }
            std::vector<float> exact(best[m].size());
            screen.exact(decoder, p.rows.rows(m, 1), best[m], exact);
            for (size_t i = 0; i < exact.size(); i++) {
              if (!Product::finite(best[m][i])) continue;
              ASSERT_EQ(exact[i], z(best[m][i]));
            }
            int32_t first = 0;
            decoder.ops().argmax({.logits = p.out.rows(m, 1), .valid = valid, .out = &first}, decoder.stream());
            EXPECT_EQ(screen.largest(decoder, p.rows.rows(m, 1), best[m]), first) << m;
          }
        }
      }
    }
  }
}

TEST(Screen, BoundsHoldForAllNumbersAndSums) {
  Rig rig(random_model(mini_config(), 3), {});
  Decoder& decoder = rig.model.decoder();
  Product a(decoder, DType::bf16, 70, 5), b(decoder, DType::f32, 16, 6);
  std::vector<float> of_a(Product::kRows * kIds), of_b(Product::kRows * kIds);
  Screen first(a.matrix), second(b.matrix);
  const auto view = [](std::vector<float>& x) { return dense<2>(x.data(), DType::f32, {Product::kRows, kIds}); };
  ASSERT_TRUE(first.estimate(decoder, a.rows, 0.25f, kIds, view(of_a)));
  ASSERT_TRUE(second.estimate(decoder, b.rows.rows(1, 3), 1, kIds, view(of_b).rows(1, 3)));
  const Screen::Part sum[] = {{first, 1}, {second, 0}};
  for (const size_t rank : {1, 20, 1000, 9000, 17000}) {
    std::vector<float> least;
    std::vector<std::function<float(int64_t)>> numbers;
    for (int64_t m = 1; m < Product::kRows; m++) {
      numbers.push_back([&, m](int64_t n) { return 0.25f * *a.out.f32(m, n) + *b.out.f32(m, n); });
      least.push_back(Product::ranked(numbers.back(), kIds, rank));
    }
    const std::vector<Ids> ids = Screen::contenders(decoder, sum, least);
    ASSERT_EQ(ids.size(), least.size());
    for (size_t m = 0; m < ids.size(); m++) Product::expect_all(ids[m], numbers[m], kIds, least[m]);
    EXPECT_LT(ids[2].size(), rank + rank / 2 + 200);
  }
}

// What is said of x, rightly or wrongly, loses none of the best; what says nothing leaves the bounds as they are.
TEST(Screen, SizesOfTheVectorLoseNone) {
  Rig rig(random_model(mini_config(), 3), {});
  Decoder& decoder = rig.model.decoder();
  Product p(decoder, DType::bf16, 256, 8);
  std::vector<float> estimates(Product::kRows * kIds), sizes, wrong;
  for (int64_t k = 0; k < p.K; k++) {
    sizes.push_back(k % 4 == 0 ? -1.0f : 0.02f), wrong.push_back(k % 4 == 0 ? 0.0f : 1.0f);
    p.x[k] *= sizes.back();
  }
  decoder.linear(p.rows, p.matrix, p.out);
  const auto z = [&](int64_t n) { return *p.out.f32(0, n); };
  const float least = Product::ranked(z, kIds, 40);
  std::vector<size_t> open;
  for (const std::vector<float>& some :
       {sizes, {}, wrong, std::vector<float>(p.K, 0.0f), std::vector<float>(p.K, NAN), std::vector<float>(3, 1.0f)}) {
    Screen screen(p.matrix, some);
    ASSERT_TRUE(
        screen.estimate(decoder, p.rows, 1, kIds, dense<2>(estimates.data(), DType::f32, {Product::kRows, kIds})));
    const Screen::Part all{screen, 0};
    const std::vector<Ids> ids = Screen::contenders(decoder, {&all, 1}, {&least, 1});
    Product::expect_all(ids[0], z, kIds, least);
    open.push_back(ids[0].size());
  }
  EXPECT_THAT(std::vector(open.begin() + 3, open.end()), ::testing::Each(open[1]));
}

TEST(Screen, SaysNothingOfVectorsThatAreNotFinite) {
  Rig rig(random_model(mini_config(), 3), {});
  Decoder& decoder = rig.model.decoder();
  Product p(decoder, DType::f32, 16, 7);
  Screen screen(p.matrix);
  std::vector<float> estimates(Product::kRows * kIds);
  const View<2> out = dense<2>(estimates.data(), DType::f32, {Product::kRows, kIds});
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    p.x[35] = bad;
    EXPECT_FALSE(screen.estimate(decoder, p.rows, 1, kIds, out));
    EXPECT_TRUE(screen.estimate(decoder, p.rows.rows(0, 2), 1, kIds, out.rows(0, 2)));
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
      table.contenders = nullptr;
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
  static void expect_same_drafts(int threads, bool spoilt);
  static std::vector<uint32_t> bits(const std::vector<float>& x) {  // NaN is itself
    std::vector<uint32_t> out;
    for (const float e : x) out.push_back(std::bit_cast<uint32_t>(e));
    return out;
  }
  static void expect_same(const std::vector<Proposal>& got, const std::vector<Proposal>& want) {
    for (size_t i = 0; i < want.size(); i++) {
      EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
      EXPECT_EQ(bits(got[i].confidence), bits(want[i].confidence)) << i;
      EXPECT_EQ(bits(got[i].q), bits(want[i].q)) << i;
      EXPECT_EQ(got[i].q_ids, want[i].q_ids) << i;
    }
  }
};

// Some ids are padding. Spoilt worlds have numbers that are none in the head, and in what a Markov head says of tokens.
struct World : BlockRig {
  World(const std::string& kind, const ModelConfig& target, const OpTable& ops, int threads, bool spoilt)
      : BlockRig(random_model(target, 5, DType::bf16), random_block(kind, target, 8, 6),
                 {.threads = threads, .seats = 3, .T = 8, .prefill_chunk = 64, .ops = &ops}) {
    BlockWeights weights = random_block(kind, target, 8, 6);
    for (int64_t id = 0; id < kIds && spoilt; id += 3) {
      if (weights.markov.w1) weights.markov.w1.f32(id)[id % 2] = id % 2 ? INFINITY : NAN;
      if (id % 7 == 0) store_from_float(rig.model.weights().lm_head.data, DType::bf16, id * target.hidden_size, NAN);
    }
    drafter.reset();
    drafter = make_block_drafter(std::move(weights), rig.model, rig.pool, kIds - 321);
    rig.use(drafter.get());
  }
};

TEST_P(Screened, DraftsAreTheSame) {
  for (const int threads : {1, 2}) expect_same_drafts(threads, false);
}

TEST_P(Screened, DraftsAreTheSameWhereNumbersAreNone) { expect_same_drafts(1, true); }

void Screened::expect_same_drafts(int threads, bool spoilt) {
  const auto world = [&](bool with) {
    return std::make_unique<World>(GetParam(), target(), ops(with), threads, spoilt);
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
