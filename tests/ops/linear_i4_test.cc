// linear_i4 on both backends: sums are exact, whatever the shape.
#include "ops/linear_i4.h"

#include <gtest/gtest.h>

#include <random>

#include "backends/tables.h"
#include "base/error.h"
#include "hwy/highway.h"

namespace deltaring::test {
namespace {

constexpr int kMost = LinearI4Args::kMostX;

struct Product {
  Product(int64_t M, int64_t N, int64_t K, uint32_t seed)
      : M(M),
        N(N),
        K(K),
        blocks((N + LinearI4Args::kPeak - 1) / LinearI4Args::kPeak),
        x(M * K),
        w(N * K / 2),
        scale(N),
        pairs(N) {
    std::mt19937 random(seed);
    for (int8_t& e : x) e = static_cast<int8_t>(static_cast<int32_t>(random() % (2 * kMost + 1)) - kMost);
    for (uint8_t& e : w) e = static_cast<uint8_t>(random());
    for (float& e : scale) e = 0x1p-10f * static_cast<float>(random() % 1000 + 1);
    count_pairs();
  }
  void count_pairs() {
    for (int64_t n = 0; n < N; n++) pairs[n] = pairs_of_i4(w.data() + n * K / 2, K);
  }
  // [M, columns + 1], the last column a sentinel, then peaks.
  std::vector<float> on(const char* name, int threads, const std::vector<int32_t>& rows = {}) const {
    const OpTable& ops = backend(name);
    const std::unique_ptr<Stream> stream = ops.make_stream(threads);
    const int64_t columns = rows.empty() ? N : static_cast<int64_t>(rows.size());
    std::vector<float> out(static_cast<size_t>(M * (columns + 1 + blocks)), -7.0f);
    View<2> view = dense<2>(out.data(), DType::f32, {M, columns + 1});
    view.shape[1] = columns;
    ops.linear_i4({.M = M,
                   .N = columns,
                   .K = K,
                   .x = x.data(),
                   .w = w.data(),
                   .scale = scale.data(),
                   .pairs = pairs.data(),
                   .rows = rows.empty() ? nullptr : rows.data(),
                   .out = view,
                   .peaks = rows.empty() ? out.data() + M * (columns + 1) : nullptr},
                  *stream);
    return out;
  }

  int64_t M, N, K, blocks;
  std::vector<int8_t> x;
  std::vector<uint8_t> w;
  std::vector<float> scale;
  std::vector<int32_t> pairs;
};

// The reference rounds once, the others twice.
void expect_near(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); i++) ASSERT_NEAR(got[i], want[i], std::abs(want[i]) * 0x1p-23f) << i;
}

TEST(LinearI4, SumsAreExact) {
  for (const int64_t M : {0, 1, 2, 3, 5, 7, 8, 9, 19}) {
    for (const auto& [N, K] : {std::pair{1, 64}, {3, 128}, {70, 192}, {131, 256}, {64, 1024}, {130, 320}}) {
      const Product p(M, N, K, static_cast<uint32_t>(M * 1000 + K));
      const std::vector<float> want = p.on("reference", 1);
      for (const int threads : {1, 3}) expect_near(p.on("cpu", threads), want);
      EXPECT_EQ(p.on("cpu", 1), p.on("cpu", 2));
    }
  }
}

TEST(LinearI4, PeaksAreTheLargestOfTheirColumns) {
  const Product p(3, 200, 128, 5);
  for (const char* name : {"reference", "cpu"}) {
    const std::vector<float> out = p.on(name, 2);
    for (int64_t m = 0; m < p.M; m++) {
      for (int64_t b = 0; b < p.blocks; b++) {
        const auto row = out.begin() + m * (p.N + 1);
        const float most =
            *std::max_element(row + b * LinearI4Args::kPeak, row + std::min(p.N, (b + 1) * LinearI4Args::kPeak));
        EXPECT_EQ(out[static_cast<size_t>(p.M * (p.N + 1) + m * p.blocks + b)], most) << name;
      }
    }
  }
}

TEST(LinearI4, SomeRowsInAnyOrder) {
  const Product p(2, 90, 192, 7);
  const std::vector<int32_t> rows{89, 3, 3, 0, 77, 5, 41};
  const std::vector<float> all = p.on("cpu", 1), some = p.on("cpu", 2, rows);
  expect_near(some, p.on("reference", 1, rows));
  for (int64_t m = 0; m < p.M; m++) {
    for (size_t i = 0; i < rows.size(); i++) {
      EXPECT_EQ(some[static_cast<size_t>(m) * (rows.size() + 1) + i],
                all[static_cast<size_t>(m * (p.N + 1) + rows[i])]);
    }
  }
}

void expect_extremes() {
  std::mt19937 random(3);
  for (int i = 0; i < 20; i++) {  // of every sign, also all one above the other
    Product p(3, 9, 1024 + 64 * i, 1);
    for (int8_t& e : p.x) e = static_cast<int8_t>(random() % 2 ? kMost : -kMost);
    for (uint8_t& e : p.w) e = static_cast<uint8_t>((random() % 2 ? 15 : 0) + (random() % 2 ? 240 : 0));
    if (i % 2) {
      for (int64_t k = 0; k < 3 * p.K; k++) p.x[k] = static_cast<int8_t>(k % 64 < 32 ? kMost : -kMost);
      std::fill(p.w.begin(), p.w.end(), static_cast<uint8_t>(i % 4 == 1 ? 0x0f : 0xf0));
    }
    p.count_pairs();
    expect_near(p.on("cpu", 1), p.on("reference", 1));
  }
  for (const auto& [x, code, want] :
       {std::tuple{kMost, 0xff, 15 * kMost}, {-kMost, 0xff, -15 * kMost}, {-kMost, 0, 15 * kMost}}) {
    Product p(5, 9, LinearI4Args::kMostK, 1);
    std::fill(p.x.begin(), p.x.end(), static_cast<int8_t>(x));
    std::fill(p.w.begin(), p.w.end(), static_cast<uint8_t>(code));
    p.count_pairs();
    std::fill(p.scale.begin(), p.scale.end(), 1.0f);
    for (const char* name : {"reference", "cpu"}) {
      const std::vector<float> out = p.on(name, 2);
      for (int64_t n = 0; n < p.N; n++) EXPECT_EQ(out[n], static_cast<float>(int64_t{want} * p.K)) << name;
    }
  }
}

// On every instruction set of this machine: how many sums a lane of 16 bits gets depends on how many lanes there are.
TEST(LinearI4, ExtremesStayInInt16AndInt32) {
  const auto use = [](int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  targets.push_back(0);  // as it was
  for (const int64_t target : targets) {
    use(target);
    expect_extremes();
  }
}

TEST(LinearI4, RefusesWhatDoesNotFit) {
  Product p(2, 3, 64, 1);
  std::vector<float> out(6);
  LinearI4Args args{.M = 2,
                    .N = 3,
                    .K = 64,
                    .x = p.x.data(),
                    .w = p.w.data(),
                    .scale = p.scale.data(),
                    .pairs = p.pairs.data(),
                    .rows = nullptr,
                    .out = dense<2>(out.data(), DType::f32, {2, 3}),
                    .peaks = nullptr};
  EXPECT_NO_THROW(check(args));
  for (const auto& spoil : std::initializer_list<void (*)(LinearI4Args&)>{
           [](LinearI4Args& a) { a.K = 0; }, [](LinearI4Args& a) { a.K = 65; }, [](LinearI4Args& a) { a.K *= 1 << 20; },
           [](LinearI4Args& a) { a.M = -1; }, [](LinearI4Args& a) { a.N = 4; }, [](LinearI4Args& a) { a.w = nullptr; },
           [](LinearI4Args& a) { a.pairs = nullptr; }, [](LinearI4Args& a) { a.out.stride[1] = 2; }}) {
    LinearI4Args bad = args;
    spoil(bad);
    EXPECT_THROW(check(bad), Error);
  }
}

}  // namespace
}  // namespace deltaring::test
