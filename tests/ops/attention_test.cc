// Paged attention and KV append, the same cases on every backend. Every page starts as NaN, so reading a row that was
// never stored shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "backends/tables.h"
#include "base/error.h"

namespace deltaring {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kSentinel = -12345.5f;

using Tensor = std::vector<float>;

Tensor random_tensor(int64_t size, uint32_t seed) {
  std::mt19937 engine(seed);
  Tensor x(size);
  for (float& e : x) e = (static_cast<float>(engine()) * 0x1p-31f - 1) * 1.7f;  // variance 1
  return x;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Shape {
  int64_t Hq, Hkv, D, page_rows;
  DType dtype = DType::f32;
};

struct Row {
  int32_t seat;
  int64_t first;
  int32_t length;
};

struct PackedRows {
  explicit PackedRows(const std::vector<Row>& rows) : start{0} {
    for (const Row& r : rows)
      seat.push_back(r.seat), first.push_back(r.first), start.push_back(start.back() + r.length);
  }
  Rows view() const {
    return {
        .count = static_cast<int32_t>(seat.size()), .start = start.data(), .seat = seat.data(), .first = first.data()};
  }
  std::vector<int32_t> start, seat;
  std::vector<int64_t> first;
};

// Seats of equal length `positions` with random tokens; what a token holds depends on its seat and position only.
class World {
 public:
  World(const OpTable& ops, const Shape& s, int32_t seats, int64_t positions, int threads = 2)
      : ops(ops), s(s), seats(seats), positions(positions), stream(ops.make_stream(threads)) {
    const int64_t pages_a_seat = (positions + s.page_rows - 1) / s.page_rows, pages = seats * pages_a_seat + 3;
    stride = pages_a_seat + 1;
    std::vector<int32_t> ids(pages);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(7));
    table.assign(seats * stride, -1);
    for (int64_t i = 0; i < seats * pages_a_seat; i++) table[i / pages_a_seat * stride + i % pages_a_seat] = ids[i];
    for (auto* store : {&k_store, &v_store}) store->resize(pages * s.Hkv * s.page_rows * s.D * size_of(s.dtype));
    kv = {.k = dense<4>(k_store.data(), s.dtype, {pages, s.Hkv, s.page_rows, s.D}),
          .v = dense<4>(v_store.data(), s.dtype, {pages, s.Hkv, s.page_rows, s.D}),
          .table = table.data(),
          .table_stride = stride};
    for (int64_t i = 0; i < pages * s.Hkv * s.page_rows * s.D; i++) {
      store_from_float(k_store.data(), s.dtype, i, kNaN), store_from_float(v_store.data(), s.dtype, i, kNaN);
    }
    for (int32_t seat = 0; seat < seats; seat++) {
      k.push_back(random_tensor(positions * s.Hkv * s.D, 100 + seat));
      v.push_back(random_tensor(positions * s.Hkv * s.D, 200 + seat));
      q.push_back(random_tensor(positions * s.Hq * s.D, 300 + seat));
      gate.push_back(random_tensor(positions * s.Hq * s.D, 400 + seat));
    }
  }

  // Stores tokens of the rows; seat -1 takes those of seat 0.
  void append(const std::vector<Row>& rows) {
    Tensor ks = pack(rows, k, s.Hkv), vs = pack(rows, v, s.Hkv);
    const PackedRows packed(rows);
    const int64_t tokens = packed.start.back();
    ops.kv_append({.rows = packed.view(),
                   .k = dense<3>(ks.data(), DType::f32, {tokens, s.Hkv, s.D}),
                   .v = dense<3>(vs.data(), DType::f32, {tokens, s.Hkv, s.D}),
                   .kv = kv},
                  *stream);
  }
  void append_all() {
    for (int32_t seat = 0; seat < seats; seat++) append({{seat, 0, static_cast<int32_t>(positions)}});
  }

  // out [tokens, Hq * D], written into a strided view between sentinels.
  Tensor attend(const std::vector<Row>& rows, bool gated = true) {
    const PackedRows packed(rows);
    const int64_t tokens = packed.start.back(), width = s.Hq * s.D, gap = 5, pitch = width + gap;
    Tensor qs = pack(rows, q, s.Hq), gates = pack(rows, gate, s.Hq), padded(gap + tokens * pitch, kSentinel);
    const View<3> out{padded.data() + gap, DType::f32, {tokens, s.Hq, s.D}, {pitch, s.D, 1}};
    ops.attention({.rows = packed.view(),
                   .q = dense<3>(qs.data(), DType::f32, {tokens, s.Hq, s.D}),
                   .gate = gated ? dense<3>(gates.data(), DType::f32, {tokens, s.Hq, s.D}) : View<3>{},
                   .kv = kv,
                   .scale = scale(),
                   .out = out},
                  *stream);
    Tensor dense_out;
    for (int64_t i = 0; i < static_cast<int64_t>(padded.size()); i++) {
      if (i % pitch < gap) {
        EXPECT_EQ(padded[i], kSentinel) << "element " << i << " between rows was written";
      } else {
        dense_out.push_back(padded[i]);
      }
    }
    return dense_out;
  }

  float scale() const { return 1 / std::sqrt(static_cast<float>(s.D)); }

  // The definition, on the stored values, for position p of a seat; and how far float arithmetic may be from it.
  void expect_near(const float* out, int32_t seat, int64_t p, bool gated) const {
    for (int64_t h = 0; h < s.Hq; h++) {
      const float* query = &q[seat][(p * s.Hq + h) * s.D];
      const int64_t kv_head = h / (s.Hq / s.Hkv);
      const auto stored = [&](const Tensor& x, int64_t j, int64_t c) {
        return static_cast<double>(round_to(s.dtype, x[(j * s.Hkv + kv_head) * s.D + c]));
      };
      std::vector<double> score(p + 1), sum_v(s.D);
      double q_norm = 0, k_norm = 0, v_max = 0, sum = 0;
      for (int64_t c = 0; c < s.D; c++) q_norm += static_cast<double>(query[c]) * query[c];
      for (int64_t j = 0; j <= p; j++) {
        double norm = 0;
        for (int64_t c = 0; c < s.D; c++) {
          const double key = stored(k[seat], j, c);
          score[j] += scale() * query[c] * key;
          norm += key * key;
        }
        k_norm = std::max(k_norm, norm);
      }
      const double top = *std::max_element(score.begin(), score.end());
      for (int64_t j = 0; j <= p; j++) {
        const double w = std::exp(score[j] - top);
        sum += w;
        for (int64_t c = 0; c < s.D; c++) {
          const double value = stored(v[seat], j, c);
          sum_v[c] += w * value;
          v_max = std::max(v_max, std::abs(value));
        }
      }
      // Each score is off by at most D roundings of |q| |k| scale, each sum by one rounding a term.
      const double eps = 0x1p-24, score_error = s.D * eps * std::sqrt(q_norm * k_norm) * scale();
      const double tolerance = v_max * (2 * score_error + (2 * std::min<double>(p + 1, 1024) + 64) * eps);
      for (int64_t c = 0; c < s.D; c++) {
        const double g = gate[seat][(p * s.Hq + h) * s.D + c];
        const double want = sum_v[c] / sum * (gated ? 1 / (1 + std::exp(-g)) : 1);
        ASSERT_NEAR(out[h * s.D + c], want, tolerance) << "seat " << seat << " position " << p << " head " << h;
      }
    }
  }

  const OpTable& ops;
  const Shape s;
  const int32_t seats;
  const int64_t positions;
  std::unique_ptr<Stream> stream;
  int64_t stride;
  std::vector<int32_t> table;
  std::vector<char> k_store, v_store;
  KvPages kv;
  std::vector<Tensor> k, v, q, gate;  // [seat][position, head, D]

 private:
  Tensor pack(const std::vector<Row>& rows, const std::vector<Tensor>& from, int64_t heads) const {
    Tensor packed;
    for (const Row& r : rows) {
      const auto begin = from[std::max(r.seat, 0)].begin() + r.first * heads * s.D;
      packed.insert(packed.end(), begin, begin + r.length * heads * s.D);
    }
    return packed;
  }
};

class Attention : public testing::TestWithParam<const OpTable*> {
 protected:
  const OpTable& ops() const { return *GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Backends, Attention, testing::ValuesIn(backends()),
                         [](const auto& info) { return info.param->name; });

TEST_P(Attention, MatchesTheDefinition) {
  const int64_t groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 40}, page_rows[] = {1, 16, 64};
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  int i = 0;
  for (const int64_t D : {16, 64, 80, 128, 256, 33, 1}) {
    for (int repeat = 0; repeat < 3; repeat++, i++) {
      const int64_t Hkv = 1 + i % 2;
      World w(ops(), {groups[i % 9] * Hkv, Hkv, D, page_rows[i % 3], dtypes[(i + repeat) % 3]}, 4, 301);
      w.append_all();
      const std::vector<Row> rows{{2, 298, 3}, {0, 0, 5}, {-1, 0, 2}, {1, 7, 0}, {3, 60, 9}};
      const bool gated = i % 2;
      const Tensor out = w.attend(rows, gated);
      const int64_t width = w.s.Hq * D;
      int64_t token = 0;
      for (const Row& r : rows) {
        for (int32_t t = 0; t < r.length; t++, token++) {
          const float* row = &out[token * width];
          if (r.seat >= 0) {
            w.expect_near(row, r.seat, r.first + t, gated);
          } else {
            EXPECT_TRUE(std::all_of(row, row + width, [](float x) { return std::bit_cast<uint32_t>(x) == 0; }));
          }
        }
      }
    }
  }
}

TEST_P(Attention, MatchesTheDefinitionFarIntoAContext) {
  World w(ops(), {4, 1, 64, 16, DType::bf16}, 1, 3000);
  w.append_all();
  for (const Row& r : {Row{0, 1022, 4}, Row{0, 2998, 2}}) {
    const Tensor out = w.attend({r});
    for (int32_t t = 0; t < r.length; t++) w.expect_near(&out[t * w.s.Hq * w.s.D], 0, r.first + t, true);
  }
}

TEST_P(Attention, BitsDoNotDependOnTheWindow) {
  for (const Shape& s : {Shape{6, 2, 80, 16, DType::bf16}, Shape{2, 2, 33, 1}, Shape{4, 1, 128, 64, DType::f16}}) {
    World w(ops(), s, 1, 1040);
    w.append_all();
    const int32_t first = 1000, tokens = 40, width = static_cast<int32_t>(s.Hq * s.D);  // across the split at 1024
    const Tensor all = w.attend({{0, first, tokens}});
    for (int32_t length : {1, 3, 33}) {
      Tensor pieces;
      for (int32_t p = first; p < first + tokens; p += length) {
        const Tensor piece = w.attend({{0, p, std::min(length, first + tokens - p)}});
        pieces.insert(pieces.end(), piece.begin(), piece.end());
      }
      EXPECT_TRUE(same_bits(pieces, all)) << "window " << length << ", D " << s.D;
    }
    const Tensor start = w.attend({{0, 0, 70}});
    EXPECT_TRUE(same_bits(w.attend({{0, 64, 1}}), Tensor(start.begin() + 64 * width, start.begin() + 65 * width)));
  }
}

TEST_P(Attention, BitsDoNotDependOnBatchThreadsOrPages) {
  const Shape s{6, 2, 64, 16, DType::bf16};
  const std::vector<Row> batch{{1, 250, 7}, {0, 299, 1}, {-1, 0, 4}, {2, 0, 40}, {3, 130, 0}, {4, 64, 3}};
  World w(ops(), s, 5, 300, 1);
  w.append_all();
  const Tensor together = w.attend(batch);
  Tensor alone;
  for (const Row& r : batch) {
    const Tensor out = w.attend({r});
    alone.insert(alone.end(), out.begin(), out.end());
  }
  EXPECT_TRUE(same_bits(alone, together));
  for (int threads : {2, 3}) {
    World other(ops(), s, 5, 300, threads);
    other.append_all();
    EXPECT_TRUE(same_bits(other.attend(batch), together)) << threads << " threads";
  }
  for (int64_t page_rows : {1, 64, 256}) {
    World other(ops(), {s.Hq, s.Hkv, s.D, page_rows, s.dtype}, 5, 300, 2);
    other.append_all();
    EXPECT_TRUE(same_bits(other.attend(batch), together)) << page_rows << " rows a page";
  }
}

TEST_P(Attention, LaterPositionsAreNeverSeen) {
  for (const Shape& s : {Shape{3, 1, 64, 16}, Shape{8, 1, 80, 1, DType::bf16}}) {
    World clean(ops(), s, 2, 90), poisoned(ops(), s, 2, 90);
    const int64_t width = s.Hkv * s.D, from = 70;
    for (auto* x : {&poisoned.k[0], &poisoned.v[0]}) std::fill(x->begin() + from * width, x->end(), kNaN);
    std::fill(poisoned.k[1].begin(), poisoned.k[1].end(), kInf);
    clean.append_all(), poisoned.append_all();
    const Tensor want = clean.attend({{0, 50, 40}}), got = poisoned.attend({{0, 50, 40}});
    const int64_t seen = 20 * s.Hq * s.D;
    EXPECT_TRUE(same_bits(Tensor(got.begin(), got.begin() + seen), Tensor(want.begin(), want.begin() + seen)));
    EXPECT_TRUE(std::all_of(got.begin() + seen, got.end(), [](float x) { return std::isnan(x); }));
  }
}

TEST_P(Attention, NaNReachesWhatItTouchesAndNothingElse) {
  World w(ops(), {2, 2, 64, 16}, 1, 80);
  w.v[0][(30 * 2 + 1) * 64 + 7] = kNaN;  // position 30, kv head 1, dimension 7: of the output as well
  w.k[0][(50 * 2 + 0) * 64 + 9] = kNaN;  // position 50, kv head 0: a score, so all dimensions
  w.append_all();
  const Tensor out = w.attend({{0, 0, 80}});
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); i++) {
    const int64_t p = i / 128, h = i / 64 % 2, c = i % 64;
    const bool touched = h == 0 ? p >= 50 : p >= 30 && c == 7;
    ASSERT_EQ(std::isnan(out[i]), touched) << "position " << p << " head " << h << " dim " << c;
  }
}

TEST_P(Attention, ScoresOfMinusInfinityCountNothing) {
  World w(ops(), {1, 1, 16, 16}, 1, 1100);
  w.append_all();
  for (int64_t p = 0; p < 1090; p++) std::fill_n(&w.k[0][p * 16], 16, -kInf);
  std::fill(w.q[0].begin(), w.q[0].end(), 0.25f);
  World only(ops(), {1, 1, 16, 16}, 1, 1100);  // the ten finite positions alone, moved to the front
  std::copy(w.k[0].begin() + 1090 * 16, w.k[0].end(), only.k[0].begin());
  std::copy(w.v[0].begin() + 1090 * 16, w.v[0].end(), only.v[0].begin());
  std::copy(w.q[0].begin() + 1090 * 16, w.q[0].end(), only.q[0].begin());
  w.append_all(), only.append_all();
  const Tensor got = w.attend({{0, 1080, 20}}, false), want = only.attend({{0, 0, 10}}, false);
  for (int64_t i = 0; i < 160; i++) {
    EXPECT_TRUE(std::isnan(got[i])) << "0/0";
    EXPECT_NEAR(got[160 + i], want[i], 1e-5f);
  }
}

TEST_P(Attention, GateSaturatesAndPropagatesNaN) {
  World w(ops(), {1, 1, 16, 16}, 1, 1);
  const Tensor gates{200, 89, 30, kInf, -200, -110, -kInf, kNaN, 0, -30, -87, -89, 104, -104, 1, -1};
  std::copy(gates.begin(), gates.end(), w.gate[0].begin());
  w.append_all();
  const Tensor out = w.attend({{0, 0, 1}});
  for (int64_t c = 0; c < 16; c++) {
    const double want = w.v[0][c] / (1 + std::exp(-static_cast<double>(gates[c])));
    if (std::isnan(gates[c])) {
      EXPECT_TRUE(std::isnan(out[c]));
    } else {
      EXPECT_NEAR(out[c], want, 0x1p-21 * std::abs(want) + 1e-37) << "gate " << gates[c];
    }
  }
}

TEST_P(Attention, AppendStoresRoundedRowsAndTouchesNothingElse) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    World w(ops(), {2, 2, 20, 4, dtype}, 3, 30);
    const Tensor special{kNaN, kInf, -kInf, 0, -0.0f, 1e-40f, 65519, 65520, 70000, 3.4e38f, 1.00390625f, 1e-7f, 6e-8f};
    std::copy(special.begin(), special.end(), w.k[1].begin() + 13 * 2 * 20);
    const std::vector<char> before_k = w.k_store, before_v = w.v_store;
    w.append({{1, 9, 8}, {-1, 0, 5}, {0, 3, 0}, {2, 29, 1}});
    std::vector<char> want_k = before_k, want_v = before_v;
    for (const Row& r : {Row{1, 9, 8}, Row{2, 29, 1}}) {
      for (int64_t p = r.first; p < r.first + r.length; p++) {
        for (int64_t i = 0; i < 2 * 20; i++) {
          const int64_t at = w.kv.k.offset(w.table[r.seat * w.stride + p / 4], i / 20, p % 4, i % 20);
          store_from_float(want_k.data(), dtype, at, w.k[r.seat][p * 40 + i]);
          store_from_float(want_v.data(), dtype, at, w.v[r.seat][p * 40 + i]);
        }
      }
    }
    EXPECT_TRUE(w.k_store == want_k && w.v_store == want_v) << name_of(dtype);
    w.attend({{2, 29, 0}, {-1, 0, 3}});
    EXPECT_TRUE(w.k_store == want_k && w.v_store == want_v) << name_of(dtype);
  }
}

// Arguments that pass, for one field at a time to be broken.
struct Good {
  explicit Good(const OpTable& ops) : w(ops, {4, 2, 16, 16}, 2, 40), x(3 * 4 * 16), packed({{0, 5, 2}, {1, 38, 1}}) {
    attention = {.rows = packed.view(), .q = tensor(4), .gate = tensor(4), .kv = w.kv, .scale = 1, .out = tensor(4)};
    append = {.rows = packed.view(), .k = tensor(2), .v = tensor(2), .kv = w.kv};
  }
  View<3> tensor(int64_t heads) { return dense<3>(x.data(), DType::f32, {3, heads, 16}); }
  World w;
  Tensor x;
  PackedRows packed;
  AttentionArgs attention;
  KvAppendArgs append;
};

TEST_P(Attention, RefusesBrokenArgumentsByName) {
  const auto refuse = [&](const char* message, auto spoil) {
    Good good(ops());
    spoil(good);
    try {
      ops().kv_append(good.append, *good.w.stream);
      ops().attention(good.attention, *good.w.stream);
      FAIL() << "accepted what should say: " << message;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::invalid_argument);
      EXPECT_THAT(e.what(), testing::HasSubstr(message));
    }
  };
  Good good(ops());
  EXPECT_NO_THROW(ops().kv_append(good.append, *good.w.stream));
  EXPECT_NO_THROW(ops().attention(good.attention, *good.w.stream));
  refuse("q [tokens, Hq, D] is bfloat16", [](Good& g) { g.attention.q.dtype = DType::bf16; });
  refuse("out [tokens, Hq, D] is [3, 4, 15], want [3, 4, 16]", [](Good& g) { g.attention.out.shape[2] = 15; });
  refuse("gate [tokens, Hq, D] is [2,", [](Good& g) { g.attention.gate.shape[0] = 2; });
  refuse("D of out [tokens, Hq, D] must be contiguous", [](Good& g) { g.attention.out.stride[2] = 2; });
  refuse("q [tokens, Hq, D] is null", [](Good& g) { g.attention.q.data = nullptr; });
  refuse("Hq = 3 is no multiple of Hkv = 2", [](Good& g) { g.attention.q = g.tensor(3); });
  refuse("page_rows is 12", [](Good& g) { g.attention.kv.k.shape[2] = 12; });
  refuse("kv.v [pages, Hkv, page_rows, D] is", [](Good& g) { g.attention.kv.v.shape[0]--; });
  refuse("kv.v is float16, want the dtype of kv.k", [](Good& g) { g.attention.kv.v.dtype = DType::f16; });
  refuse("D of kv.k and kv.v must be contiguous", [](Good& g) { g.append.kv.k.stride[3] = 2; });
  refuse("kv.k and kv.v [pages, Hkv, page_rows, D] must be given", [](Good& g) { g.append.kv.v.data = nullptr; });
  refuse("kv.table [seats, table_stride] is null", [](Good& g) { g.append.kv.table = nullptr; });
  refuse("kv.table[0, 0] is -1", [](Good& g) { g.w.table[0] = -1; });
  refuse("kv.table[1, 0] is 99", [](Good& g) { g.w.table[g.w.stride] = 99; });  // attention alone reads that far back
  refuse("reaches position 80, kv.table [seats, 4] ends at 64", [](Good& g) { g.packed.first[1] = 80; });
  refuse("k [tokens, Hkv, D] is [3, 4, 16], want [3, 2, 16]", [](Good& g) { g.append.k = g.tensor(4); });
  refuse("v [tokens, Hkv, D] is float16", [](Good& g) { g.append.v.dtype = DType::f16; });
  refuse("rows", [](Good& g) { g.packed.start[2] = 4; });
  refuse("seat", [](Good& g) { g.packed.seat[0] = -2; });
  refuse("first", [](Good& g) { g.packed.first[0] = -1; });
}

}  // namespace
}  // namespace deltaring
