#include "ops/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "backends/tables.h"
#include "base/error.h"
#include "ops/device.h"
#include "ops/refused.h"
#include "ops/tensor.h"

namespace deltaring {
namespace {

using testing::expect_refused;
using ::testing::HasSubstr;
using testing::kEps;
using testing::same_bits;
using testing::Tensor;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr DType kPlainTypes[] = {DType::f32, DType::bf16, DType::f16};
constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f8_e4m3};

struct Case {
  Case(DType dtype, int64_t M, int64_t N, int64_t K, int64_t gap, DType scale = DType::f32)
      : x(DType::f32, {M, K}, gap),
        w(dtype, {N, K}, gap),
        scales(scale, {WeightMatrix::blocks(N), WeightMatrix::blocks(K)}, gap),
        out(DType::f32, {M, N}, gap) {
    std::mt19937 random(static_cast<uint32_t>(M * 10007 + N * 101 + K));
    x.fill(random);
    w.fill(random);
    scales.fill(random, 0.1f, 3);
  }
  bool scaled() const { return w.view().dtype == DType::f8_e4m3; }
  WeightMatrix matrix() const { return scaled() ? WeightMatrix(w.view(), scales.view()) : w.view(); }
  LinearArgs args(bool accumulate = false) const {
    return {.x = x.view(), .w = matrix(), .out = out.view(), .accumulate = accumulate};
  }
  double weight(int64_t n, int64_t k) const {
    return w(n, k) * (scaled() ? scales(n / WeightMatrix::kBlock, k / WeightMatrix::kBlock) : 1);
  }

  // Every element against a sum in double. A sum of K products in f32, cut into vectors and chunks, errs by a small
  // multiple of log2 K roundings of sum |x||w|; the last rounding, the addition to out and scales add one each.
  void expect_near(const Tensor<2>& before, bool accumulate) const {
    for (int64_t m = 0; m < out.view().shape[0]; m++) {
      for (int64_t n = 0; n < out.view().shape[1]; n++) {
        const int64_t K = x.view().shape[1];
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < K; k++) sum += x(m, k) * weight(n, k), magnitude += std::fabs(x(m, k) * weight(n, k));
        const double want = accumulate ? before(m, n) + sum : sum;
        const double tolerance = kEps * ((std::log2(K) + 3) * magnitude + std::fabs(want));
        ASSERT_LE(std::fabs(out(m, n) - want), tolerance) << "out[" << m << ", " << n << "]";
      }
    }
  }

  Tensor<2> x, w, scales, out;
};

TEST(Linear, AgreesWithDoubleForOddShapesAndStrides) {
  constexpr int64_t kK[] = {1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 257, 511, 512, 513, 1040, 1543};
  int64_t turn = 0;
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(2);
    for (DType dtype : kTypes) {
      for (int64_t M : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 65}) {
        for (int64_t N : {1, 2, 3, 5, 7, 12, 13, 23, 33, 49}) {
          const int64_t K = kK[turn % std::size(kK)], gap = turn % 3;
          const bool accumulate = turn % 2;
          SCOPED_TRACE(fmt::format("{} {} M={} N={} K={} gap={}", backend->name, name_of(dtype), M, N, K, gap));
          turn++;
          Case c(dtype, M, N, K, gap);
          std::mt19937 random(1);
          if (accumulate) c.out.fill(random, -3, 3);
          const Tensor<2> before = c.out;
          backend->linear(c.args(accumulate), *stream);
          c.expect_near(before, accumulate);
          ASSERT_TRUE(c.out.gaps_untouched());
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// Rows one at a time, any block of them, any block of columns, any number of threads: the same bits.
TEST(Linear, IsRowInvariant) {
  constexpr int64_t N = 61, K = 1100;
  for (const OpTable* backend : replay::on_host(backends())) {
    for (DType dtype : kTypes) {
      SCOPED_TRACE(fmt::format("{} {}", backend->name, name_of(dtype)));
      constexpr int64_t M = 131;
      Case whole(dtype, M, N, K, 0);
      const auto stream = backend->make_stream(2);
      backend->linear(whole.args(), *stream);
      for (int threads : {1, 3}) {
        Case other(dtype, M, N, K, 5);
        const auto pool = backend->make_stream(threads);
        backend->linear(other.args(), *pool);
        for (int64_t m = 0; m < M; m++) {
          ASSERT_TRUE(same_bits(whole.out.view().f32(m), other.out.view().f32(m), N)) << m << " threads " << threads;
        }
      }
      for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 20, 21, 64, 65}) {
        for (int64_t cols : {N, int64_t{1}, int64_t{14}}) {
          const int64_t m = M - rows, n = N - cols;
          Tensor<2> part(DType::f32, {rows, cols});
          backend->linear({.x = whole.x.view().rows(m, rows), .w = whole.matrix().rows(n, cols), .out = part.view()},
                          *stream);
          for (int64_t i = 0; i < rows; i++) {
            ASSERT_TRUE(same_bits(whole.out.view().f32(m + i, n), part.view().f32(i), cols))
                << rows << " rows, " << cols << " columns, row " << i;
          }
        }
      }
    }
  }
}

TEST(Linear, NonFiniteValuesStayInTheirRowAndColumn) {
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(2);
    for (DType dtype : kTypes) {
      for (int64_t M : {8, 30}) {
        SCOPED_TRACE(fmt::format("{} {} M={}", backend->name, name_of(dtype), M));
        Case clean(dtype, M, 13, 77, 1), dirty(dtype, M, 13, 77, 1);
        dirty.x.set(kNaN, 3, 76);
        dirty.x.set(kInf, 5, 0);
        dirty.w.set(kNaN, 7, 40);
        backend->linear(clean.args(), *stream);
        backend->linear(dirty.args(), *stream);
        for (int64_t m = 0; m < M; m++) {
          for (int64_t n = 0; n < 13; n++) {
            const float got = *dirty.out.view().f32(m, n);
            if (m == 3 || n == 7) {
              ASSERT_TRUE(std::isnan(got)) << m << " " << n;
            } else if (m == 5) {
              ASSERT_TRUE(std::isinf(got)) << m << " " << n;
            } else {
              ASSERT_TRUE(same_bits(&got, clean.out.view().f32(m, n), 1)) << m << " " << n;
            }
          }
        }
      }
    }
  }
}

// x and w end where a mapping ends.
TEST(Linear, ReadsNothingBehindTheLastElement) {
  const int64_t page = sysconf(_SC_PAGESIZE), bytes = 16 * page;
  const auto guarded = [&] {
    char* base =
        static_cast<char*>(mmap(nullptr, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(mprotect(base + bytes, page, PROT_NONE), 0);
    return base;
  };
  char *x_map = guarded(), *w_map = guarded();
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(1);
    for (DType dtype : kTypes) {
      for (int64_t M : {1, 4, 24}) {
        for (int64_t K : {1, 5, 8, 13, 31, 520}) {
          const int64_t N = 7;
          Case c(dtype, M, N, K, 0);
          const int64_t x_bytes = M * K * 4, w_bytes = N * K * static_cast<int64_t>(size_of(dtype));
          LinearArgs args = c.args();
          args.x.data = std::memcpy(x_map + bytes - x_bytes, c.x.view().data, x_bytes);
          args.w.values.data = std::memcpy(w_map + bytes - w_bytes, c.w.view().data, w_bytes);
          backend->linear(args, *stream);
          c.expect_near(c.out, false);
        }
      }
    }
  }
  munmap(x_map, bytes + page);
  munmap(w_map, bytes + page);
}

// Blocks of scales end inside the matrix, at its edges and behind them.
TEST(Linear, Float8AgreesWithDoubleForEveryEdgeOfItsBlocks) {
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(2);
    for (const DType scale : kPlainTypes) {
      for (const auto& [N, K] : {std::pair<int64_t, int64_t>{1, 1}, {127, 129}, {128, 128}, {129, 127}, {257, 700}}) {
        for (int64_t M : {1, 3, 21}) {
          SCOPED_TRACE(fmt::format("{} {} M={} N={} K={}", backend->name, name_of(scale), M, N, K));
          const Case c(DType::f8_e4m3, M, N, K, 3, scale);
          backend->linear(c.args(), *stream);
          c.expect_near(c.out, false);
          ASSERT_TRUE(c.out.gaps_untouched());
        }
      }
    }
  }
}

// So that a float8 matrix has every property of the float32 one that it stands for.
TEST(Linear, Float8HasTheBitsOfTheMatrixItStandsFor) {
  const OpTable& cpu = backend("cpu");
  const auto stream = cpu.make_stream(2);
  for (int64_t M : {1, 2, 5, 7, 20, 21, 64, 65}) {
    for (const auto& [N, K] : {std::pair<int64_t, int64_t>{5, 1100}, {131, 129}, {300, 77}}) {
      const Case codes(DType::f8_e4m3, M, N, K, 1);
      Case floats(DType::f32, M, N, K, 0);
      for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++) floats.w.set(static_cast<float>(codes.weight(n, k)), n, k);
      cpu.linear(codes.args(), *stream);
      cpu.linear(floats.args(), *stream);
      for (int64_t m = 0; m < M; m++)
        ASSERT_TRUE(same_bits(codes.out.view().f32(m), floats.out.view().f32(m), N)) << M << " " << N << " " << K;
    }
  }
}

TEST(Linear, EveryFloat8CodeHasItsValue) {
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(1);
    for (int64_t M : {1, 30}) {
      const Case c(DType::f8_e4m3, M, 256, 1, 0);
      for (int64_t n = 0; n < 256; n++) static_cast<uint8_t*>(c.w.view().data)[n] = static_cast<uint8_t>(n);
      std::fill_n(c.x.view().f32(), M, 1.0f);
      backend->linear(c.args(), *stream);
      for (int64_t n = 0; n < 256; n++) {
        const float want = static_cast<float>(c.weight(n, 0)), got = *c.out.view().f32(M - 1, n);
        ASSERT_EQ(std::isnan(got), n % 128 == 127) << backend->name << " " << n;
        ASSERT_TRUE(std::isnan(got) || got == want) << backend->name << " " << n;
      }
    }
  }
}

TEST(Embedding, CopiesRowsExactly) {
  for (const OpTable* backend : replay::on_host(backends())) {
    for (DType dtype : kPlainTypes) {
      for (int threads : {1, 3}) {
        const auto stream = backend->make_stream(threads);
        for (int64_t tokens : {0, 1, 5, 300}) {
          for (int64_t H : {1, 7, 257}) {
            SCOPED_TRACE(fmt::format("{} {} tokens={} H={}", backend->name, name_of(dtype), tokens, H));
            std::mt19937 random(3);
            Tensor<2> table(dtype, {11, H}, 2), out(DType::f32, {tokens, H}, 3);
            table.fill(random, -9, 9);
            std::vector<int32_t> ids(tokens);
            for (int32_t& id : ids) id = static_cast<int32_t>(random() % 11);
            backend->embedding({.ids = ids.data(), .table = table.view(), .out = out.view()}, *stream);
            for (int64_t t = 0; t < tokens; t++)
              for (int64_t i = 0; i < H; i++) ASSERT_EQ(out(t, i), table(ids[t], i)) << t << " " << i;
            ASSERT_TRUE(out.gaps_untouched());
          }
        }
      }
    }
  }
}

TEST(Embedding, RefusesIdsOutsideTheTable) {
  for (const OpTable* backend : replay::on_host(backends())) {
    const auto stream = backend->make_stream(2);
    std::mt19937 random(4);
    Tensor<2> table(DType::f32, {11, 4}), out(DType::f32, {3, 4});
    table.fill(random);
    for (int32_t bad : {-1, 11, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
      const int32_t ids[] = {0, bad, 1};
      try {
        backend->embedding({.ids = ids, .table = table.view(), .out = out.view()}, *stream);
        ADD_FAILURE() << backend->name << " took id " << bad;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr(fmt::format("ids[1] is {}, want [0, 11)", bad)));
      }
    }
  }
}

TEST(Linear, CheckNamesWhatIsWrong) {
  const Case c(DType::bf16, 3, 5, 7, 0);
  expect_refused<LinearArgs>(
      c.args(),
      {
          {[](auto& a) { a.x.dtype = DType::bf16; }, "x [M, K] is bfloat16, want float32"},
          {[](auto& a) { a.out.dtype = DType::f16; }, "out [M, N] is float16, want float32"},
          {[](auto& a) { a.w.values.shape[1] = 8; }, "w [N, K] has 8 in K, want 7"},
          {[](auto& a) { a.out.shape[0] = 4; }, "out [M, N] has 4 in M, want 3"},
          {[](auto& a) { a.out.shape[1] = 4; }, "out [M, N] has 4 in N, want 5"},
          {[](auto& a) { a.x.shape[1] = a.w.values.shape[1] = 0; }, "x [M, K] has 0 in K, want >= 1"},
          {[](auto& a) { a.x.shape[0] = -1; }, "x [M, K] has -1 in M, want >= 0"},
          {[](auto& a) { a.x.data = nullptr; }, "x [M, K] is null"},
          {[](auto& a) { a.w.values.data = nullptr; }, "w [N, K] is null"},
          {[](auto& a) { a.out.data = nullptr; }, "out [M, N] is null"},
          {[](auto& a) { a.x.stride[1] = 2; }, "x [M, K] has stride 2 in K, want 1"},
          {[](auto& a) { a.w.values.stride[1] = 5; }, "w [N, K] has stride 5 in K, want 1"},
          {[](auto& a) { a.out.stride[1] = 0; }, "out [M, N] has stride 0 in N, want 1"},
          {[](auto& a) { a.out.stride[0] = 4; }, "out [M, N] has stride 4 in M, want at least 5: it overlaps itself"},
      });
  const Case scaled(DType::f8_e4m3, 3, 200, 300, 0);
  expect_refused<LinearArgs>(
      scaled.args(),
      {
          {[](auto& a) { a.w.scales = {}; }, "w [N, K] is float8_e4m3fn without scales"},
          {[](auto& a) { a.w.values.dtype = DType::f16; }, "w [N, K] is float16 and has scales"},
          {[](auto& a) { a.w.scales.shape[0] = 1; }, "scales [N / 128, K / 128] has 1 in N / 128, want 2"},
          {[](auto& a) { a.w.scales.shape[1] = 4; }, "scales [N / 128, K / 128] has 4 in K / 128, want 3"},
          {[](auto& a) { a.w.scales.dtype = DType::f8_e4m3; }, "scales [N / 128, K / 128] is float8_e4m3fn"},
          {[](auto& a) { a.x.dtype = DType::f8_e4m3; }, "x [M, K] is float8_e4m3fn, want float32, bfloat16"},
      });
  const Case none(DType::f32, 0, 5, 7, 0);
  LinearArgs empty = none.args();
  empty.x.data = empty.out.data = nullptr;
  EXPECT_NO_THROW(check(empty));
}

TEST(Embedding, CheckNamesWhatIsWrong) {
  const Tensor<2> table(DType::bf16, {11, 7}), out(DType::f32, {3, 7});
  const int32_t ids[] = {0, 1, 2};
  expect_refused<EmbeddingArgs>(
      {.ids = ids, .table = table.view(), .out = out.view()},
      {
          {[](auto& a) { a.ids = nullptr; }, "ids [tokens] is null"},
          {[](auto& a) { a.out.dtype = DType::bf16; }, "out [tokens, H] is bfloat16"},
          {[](auto& a) { a.out.shape[1] = 6; }, "out [tokens, H] has 6 in H, want 7"},
          {[](auto& a) { a.table.shape[0] = -1; }, "table [vocab, H] has -1 in vocab, want >= 0"},
          {[](auto& a) { a.table.dtype = DType::f8_e4m3; }, "table [vocab, H] is float8_e4m3fn, want float32, bfl"},
          {[](auto& a) { a.table.data = nullptr; }, "table [vocab, H] is null"},
          {[](auto& a) { a.table.stride[1] = 2; }, "table [vocab, H] has stride 2 in H, want 1"},
          {[](auto& a) { a.out.data = nullptr; }, "out [tokens, H] is null"},
          {[](auto& a) { a.out.stride[0] = 0; }, "out [tokens, H] has stride 0 in tokens, want at least 7"},
      });
}

}  // namespace
}  // namespace deltaring
