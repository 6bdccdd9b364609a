// Some seats full of random tokens behind a shuffled page table, and what attention over them has to give.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "ops/table.h"

namespace deltaring::attention_test {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kSentinel = -12345.5f;

using Tensor = std::vector<float>;

inline Tensor random_tensor(int64_t size, uint32_t seed) {
  std::mt19937 engine(seed);
  Tensor x(size);
  for (float& e : x) e = (static_cast<float>(engine()) * 0x1p-31f - 1) * 1.7f;  // variance 1
  return x;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
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

// What queries see beside the causal past.
struct Sight {
  int64_t window = 0;
  bool whole_row = false;
  Tensor sinks = {};  // [Hq] or empty

  int64_t begin(int64_t p) const { return window > 0 ? std::max<int64_t>(0, p - window + 1) : 0; }
  int64_t end(const Row& row, int64_t p) const { return whole_row ? row.first + row.length : p + 1; }
};

// Rows and the arrays they point to.
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

// Seats of equal length `positions` with random tokens; what a token holds depends on its seat and position only. Every
// page starts as NaN, so reading a row that was never stored shows.
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
          .table_stride = stride,
          .seats = seats};
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
  Tensor attend(const std::vector<Row>& rows, bool gated = true, const Sight& sight = {}) {
    const PackedRows packed(rows);
    const int64_t tokens = packed.start.back(), width = s.Hq * s.D, gap = 5, pitch = width + gap;
    Tensor qs = pack(rows, q, s.Hq), gates = pack(rows, gate, s.Hq), padded(gap + tokens * pitch, kSentinel);
    const View<3> out{padded.data() + gap, DType::f32, {tokens, s.Hq, s.D}, {pitch, s.D, 1}};
    ops.attention({.rows = packed.view(),
                   .q = dense<3>(qs.data(), DType::f32, {tokens, s.Hq, s.D}),
                   .gate = gated ? dense<3>(gates.data(), DType::f32, {tokens, s.Hq, s.D}) : View<3>{},
                   .kv = kv,
                   .scale = scale(),
                   .whole_row = sight.whole_row,
                   .window = sight.window,
                   .sinks = sight.sinks.empty() ? nullptr : sight.sinks.data(),
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
    expect_near(out, {seat, p, 1}, p, gated, {});
  }
  void expect_near(const float* out, const Row& row, int64_t p, bool gated, const Sight& sight) const {
    const int32_t seat = row.seat;
    const int64_t begin = sight.begin(p), end = sight.end(row, p);
    for (int64_t h = 0; h < s.Hq; h++) {
      const float* query = &q[seat][(p * s.Hq + h) * s.D];
      const int64_t kv_head = h / (s.Hq / s.Hkv);
      const auto stored = [&](const Tensor& x, int64_t j, int64_t c) {
        return static_cast<double>(round_to(s.dtype, x[(j * s.Hkv + kv_head) * s.D + c]));
      };
      std::vector<double> score(end), sum_v(s.D);
      double q_norm = 0, k_norm = 0, v_max = 0, sum = 0;
      for (int64_t c = 0; c < s.D; c++) q_norm += static_cast<double>(query[c]) * query[c];
      for (int64_t j = begin; j < end; j++) {
        double norm = 0;
        for (int64_t c = 0; c < s.D; c++) {
          const double key = stored(k[seat], j, c);
          score[j] += scale() * query[c] * key;
          norm += key * key;
        }
        k_norm = std::max(k_norm, norm);
      }
      double top = *std::max_element(score.begin() + begin, score.end());
      if (!sight.sinks.empty()) top = std::max<double>(top, sight.sinks[h]), sum = std::exp(sight.sinks[h] - top);
      for (int64_t j = begin; j < end; j++) {
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
      const double tolerance = v_max * (2 * score_error + (2 * std::min<double>(end, 1024) + 64) * eps);
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

}  // namespace deltaring::attention_test
