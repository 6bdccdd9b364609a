// The specification of paged attention: every score of a query, then one softmax, in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backends/reference/ops.h"

namespace deltaring::reference {

namespace {

// First element of the D numbers that `pages` (kv.k or kv.v) holds for position p of a seat and one kv head.
int64_t at(const KvPages& kv, const View<4>& pages, int32_t seat, int64_t kv_head, int64_t p) {
  const int64_t page_rows = pages.shape[2];
  return pages.offset(kv.table[seat * kv.table_stride + p / page_rows], kv_head, p % page_rows);
}

// out[D] of query head `head` of `token`, which sees positions [begin, end).
void attend(const AttentionArgs& a, int32_t seat, int64_t begin, int64_t end, int64_t token, int64_t head) {
  const KvPages& kv = a.kv;
  const int64_t D = kv.k.shape[3], group = a.q.shape[1] / kv.k.shape[1];
  const float* q = a.q.f32(token, head);

  std::vector<double> score(end - begin);
  double largest = a.sinks ? a.sinks[head] : -std::numeric_limits<double>::infinity();
  for (int64_t j = begin; j < end; j++) {
    const int64_t k = at(kv, kv.k, seat, head / group, j);
    double dot = 0;
    for (int64_t c = 0; c < D; c++) dot += static_cast<double>(q[c]) * load_as_float(kv.k.data, kv.k.dtype, k + c);
    score[j - begin] = a.scale * dot;
    largest = std::max(largest, score[j - begin]);
  }

  double sum = a.sinks ? std::exp(a.sinks[head] - largest) : 0;
  std::vector<double> out(D);
  for (int64_t j = begin; j < end; j++) {
    const int64_t v = at(kv, kv.v, seat, head / group, j);
    const double weight = std::exp(score[j - begin] - largest);
    sum += weight;
    for (int64_t c = 0; c < D; c++) out[c] += weight * load_as_float(kv.v.data, kv.v.dtype, v + c);
  }

  for (int64_t c = 0; c < D; c++) {
    const double gate = a.gate ? 1 / (1 + std::exp(-static_cast<double>(*a.gate.f32(token, head, c)))) : 1;
    *a.out.f32(token, head, c) = static_cast<float>(out[c] / sum * gate);
  }
}

}  // namespace

void kv_append(const KvAppendArgs& args, Stream&) {
  check(args);
  const Rows& rows = args.rows;
  const KvPages& kv = args.kv;
  const int64_t Hkv = args.k.shape[1], D = args.k.shape[2];
  for (int32_t b = 0; b < rows.count; b++) {
    const int32_t seat = rows.seat[b];
    for (int32_t i = 0; i < rows.length(b) && seat >= 0; i++) {
      const int64_t token = rows.start[b] + i, p = rows.first[b] + i;
      for (int64_t h = 0; h < Hkv; h++) {
        const int64_t k = at(kv, kv.k, seat, h, p), v = at(kv, kv.v, seat, h, p);
        for (int64_t c = 0; c < D; c++) {
          store_from_float(kv.k.data, kv.k.dtype, k + c, *args.k.f32(token, h, c));
          store_from_float(kv.v.data, kv.v.dtype, v + c, *args.v.f32(token, h, c));
        }
      }
    }
  }
}

void attention(const AttentionArgs& args, Stream&) {
  check(args);
  const Rows& rows = args.rows;
  const int64_t Hq = args.q.shape[1], D = args.q.shape[2];
  for (int32_t b = 0; b < rows.count; b++) {
    for (int32_t i = 0; i < rows.length(b); i++) {
      const int64_t token = rows.start[b] + i, p = rows.first[b] + i;
      const int64_t begin = args.window > 0 ? std::max<int64_t>(0, p - args.window + 1) : 0;
      const int64_t end = args.whole_row ? rows.first[b] + rows.length(b) : p + 1;
      for (int64_t h = 0; h < Hq; h++) {
        if (rows.seat[b] < 0) {
          std::fill_n(args.out.f32(token, h), D, 0.0f);
        } else {
          attend(args, rows.seat[b], begin, end, token, h);
        }
      }
    }
  }
}

}  // namespace deltaring::reference
