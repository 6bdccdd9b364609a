// Paged attention and KV append, the same cases on every backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "backends/tables.h"
#include "base/error.h"
#include "ops/attention_world.h"
#include "ops/device.h"

namespace deltaring::attention_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class Attention : public testing::TestWithParam<const OpTable*> {
 protected:
  const OpTable& ops() const { return *GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Backends, Attention, testing::ValuesIn(replay::on_host(backends())),
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

// Sliding windows, whole rows and sinks, alone and together, around the bounds of blocks and splits.
TEST_P(Attention, WindowsWholeRowsAndSinksMatchTheDefinition) {
  int i = 0;
  for (const int64_t window : {0, 1, 5, 64, 100, 1030}) {
    for (const bool whole_row : {false, true}) {
      for (const bool sinks : {false, true}) {
        const Shape s{4 * (1 + i % 2), 2, i % 3 ? 64 : 33, 16, i % 2 ? DType::bf16 : DType::f32};
        World w(ops(), s, 2, 1100);
        w.append_all();
        Sight sight{.window = window, .whole_row = whole_row, .sinks = {}};
        if (sinks) sight.sinks = random_tensor(s.Hq, 9);
        const std::vector<Row> rows{{0, 1020, 9}, {1, 61, 8}, {-1, 3, 2}};
        const Tensor out = w.attend(rows, false, sight);
        int64_t token = 0;
        for (const Row& r : rows) {
          for (int32_t t = 0; t < r.length && r.seat >= 0; t++, token++)
            w.expect_near(&out[token * s.Hq * s.D], r, r.first + t, false, sight);
        }
        i++;
      }
    }
  }
}

// A window cuts the past without a trace: what lies before it may be anything, and rows may be cut anywhere.
TEST_P(Attention, NothingBeforeAWindowIsSeen) {
  const Shape s{4, 2, 64, 16};
  World clean(ops(), s, 1, 1060), poisoned(ops(), s, 1, 1060);
  const int64_t width = s.Hkv * s.D;
  for (auto* x : {&poisoned.k[0], &poisoned.v[0]}) std::fill(x->begin(), x->begin() + 971 * width, kNaN);
  clean.append_all(), poisoned.append_all();
  for (const bool whole_row : {false, true}) {
    const Sight sight{.window = 30, .whole_row = whole_row, .sinks = {}};
    const Tensor all = clean.attend({{0, 1000, 50}}, true, sight);
    EXPECT_TRUE(same_bits(poisoned.attend({{0, 1000, 50}}, true, sight), all)) << whole_row;
    Tensor pieces;
    for (int32_t p = 1000; p < 1050; p += 7) {
      const Tensor piece = clean.attend({{0, p, std::min(7, 1050 - p)}}, true, sight);
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(same_bits(pieces, all), !whole_row);
  }
  World other(ops(), s, 1, 1060, 3);
  other.append_all();
  EXPECT_TRUE(same_bits(other.attend({{0, 1000, 50}}, true, {.window = 30, .sinks = {}}),
                        clean.attend({{0, 1000, 50}}, true, {.window = 30, .sinks = {}})));
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
  refuse("out [tokens, Hq, D] has 15 in D, want 16", [](Good& g) { g.attention.out.shape[2] = 15; });
  refuse("gate [tokens, Hq, D] has 2 in tokens, want 3", [](Good& g) { g.attention.gate.shape[0] = 2; });
  refuse("out [tokens, Hq, D] has stride 2 in D, want 1", [](Good& g) { g.attention.out.stride[2] = 2; });
  refuse("q [tokens, Hq, D] is null", [](Good& g) { g.attention.q.data = nullptr; });
  refuse("window is -1", [](Good& g) { g.attention.window = -1; });
  refuse("Hq = 3 is no multiple of Hkv = 2", [](Good& g) { g.attention.q = g.tensor(3); });
  refuse("page_rows is 12", [](Good& g) { g.attention.kv.k.shape[2] = g.attention.kv.v.shape[2] = 12; });
  refuse("kv.v [pages, Hkv, page_rows, D] has 8 in pages, want 9", [](Good& g) { g.attention.kv.v.shape[0]--; });
  refuse("kv.v [pages, Hkv, page_rows, D] is float16, want float32",
         [](Good& g) { g.attention.kv.v.dtype = DType::f16; });
  refuse("kv.k [pages, Hkv, page_rows, D] has stride 2 in D, want 1", [](Good& g) { g.append.kv.k.stride[3] = 2; });
  refuse("kv.v [pages, Hkv, page_rows, D] is null", [](Good& g) { g.append.kv.v.data = nullptr; });
  refuse("kv.table [seats, table_stride] is null", [](Good& g) { g.append.kv.table = nullptr; });
  refuse("kv.table[0, 0] is -1", [](Good& g) { g.w.table[0] = -1; });
  refuse("kv.table[1, 0] is 99", [](Good& g) { g.w.table[g.w.stride] = 99; });  // attention alone reads that far back
  refuse("reaches position 80, kv.table [seats, 4] ends at 64", [](Good& g) { g.packed.first[1] = 80; });
  refuse("k [tokens, Hkv, D] has 4 in Hkv, want 2", [](Good& g) { g.append.k = g.tensor(4); });
  refuse("v [tokens, Hkv, D] is float16", [](Good& g) { g.append.v.dtype = DType::f16; });
  refuse("rows hold 4 tokens, the views 3", [](Good& g) { g.packed.start[2] = 4; });
  refuse("rows.seat[0] is -2, want -1 or [0, 2)", [](Good& g) { g.packed.seat[0] = -2; });
  refuse("rows.seat[0] is 2, want -1 or [0, 2)", [](Good& g) { g.packed.seat[0] = 2; });
  refuse("rows.seat[1] is 1, want -1 or [0, 1)", [](Good& g) { g.attention.kv.seats = 1; });
  refuse("rows.first[0] is -1", [](Good& g) { g.packed.first[0] = -1; });
}

}  // namespace
}  // namespace deltaring::attention_test
