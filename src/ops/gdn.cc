#include "ops/gdn.h"

#include <cmath>
#include <limits>

#include "ops/check_gdn.h"

namespace deltaring {

void check_heads(const char* op, int64_t Hk, int64_t Hv, int64_t K, int64_t G) {
  check(Hk >= 1 && Hv >= 1 && Hv % Hk == 0, "{}: Hv = {} is no multiple of Hk = {}", op, Hv, Hk);
  check(G == 1 || G == K, "{}: {} gate channels a head, want 1 or K = {}", op, G, K);
}

void check_scale(const char* op, float scale) {
  check(std::isfinite(scale), "{}: scale is {}, want a finite number, or 0 for K^-1/2", op, scale);
}

void check_state(const char* op, const GdnState& s) {
  const auto [seats, Hv, V, K] = s.checkpoint.shape;
  const int64_t Hk = s.record_k.shape[1], R = s.record_k.shape[2], G = s.record_g.shape[3];
  check_output(op, "checkpoint [seats, Hv, V, K]", s.checkpoint, s.checkpoint.dtype, s.checkpoint.shape);
  check_output(op, "record_k [seats, Hk, R, K]", s.record_k, s.record_k.dtype, {seats, Hk, R, K});
  check_output(op, "record_v [seats, Hv, R, V]", s.record_v, s.record_k.dtype, {seats, Hv, R, V});
  check_output(op, "record_g [seats, Hv, R, G]", s.record_g, DType::f32, {seats, Hv, R, G});
  check_output(op, "record_beta [seats, Hv, R]", s.record_beta, DType::f32, {seats, Hv, R});
  check_heads(op, Hk, Hv, K, G);
  check(R >= 1, "{}: record_k [seats, Hk, R, K] has {} in R, want >= 1, for example 16", op, R);
}

namespace {

void check_grain(const char* op, int64_t grain) {
  check(grain == 0 || grain == 8 || grain == 16, "{}: grain is {}, want 8, 16 or 0", op, grain);
}

// What every row must satisfy, whatever is done with it.
void check_cursor(const char* op, const Rows& rows, int32_t b, int64_t end, int64_t R, int64_t grain) {
  const int64_t folded = rows.folded[b], first = rows.first[b], fold_to = rows.fold_to[b];
  check(0 <= folded && folded <= first && first <= kLastPosition,
        "{}: row {}: folded {} is not in [0, first = {}], or that is beyond 2^62", op, b, folded, first);
  check(folded <= fold_to && fold_to <= end, "{}: row {}: fold_to {} is not in [folded, {}] = [{}, {}]", op, b, fold_to,
        end, folded, end);
  check(first - folded <= R, "{}: row {}: {} records in a ring of {}", op, b, first - folded, R);
  check(grain == 0 || (folded % grain == 0 && fold_to % grain == 0),
        "{}: row {}: folded {} and fold_to {} must be multiples of the grain {}", op, b, folded, fold_to, grain);
}

void check_window(const char* op, const GdnVerifyArgs& a) {
  check_views(op, a);
  check(a.rows, a.state.checkpoint.shape[0], a.q.shape[0]);
  check(a.rows.count == 0 || (a.rows.folded && a.rows.fold_to), "{}: rows of {} need folded and fold_to", op,
        a.rows.count);
}

}  // namespace

GdnState layer_of(const GdnState& s, int64_t layers, int64_t l) {
  const int64_t seats = s.checkpoint.shape[0] / layers, first = l * seats;
  return {.checkpoint = s.checkpoint.rows(first, seats),
          .record_k = s.record_k.rows(first, seats),
          .record_v = s.record_v.rows(first, seats),
          .record_g = s.record_g.rows(first, seats),
          .record_beta = s.record_beta.rows(first, seats)};
}

void check(const GdnGatesArgs& a) {
  const auto [tokens, Hv, G] = a.a.shape;
  check_view("gdn_gates", "a [tokens, Hv, G]", a.a, DType::f32, a.a.shape);
  check_view("gdn_gates", "b [tokens, Hv]", a.b, DType::f32, {tokens, Hv});
  check_output("gdn_gates", "g [tokens, Hv, G]", a.g, DType::f32, a.a.shape);
  check_output("gdn_gates", "beta [tokens, Hv]", a.beta, DType::f32, {tokens, Hv});
  check(a.A_log, "gdn_gates: A_log [Hv] is null");
  check(a.dt_bias, "gdn_gates: dt_bias [Hv, G] is null");
}

void check_views(const char* op, const GdnVerifyArgs& a) {
  const auto [seats, Hv, V, K] = a.state.checkpoint.shape;
  check_state(op, a.state), check_grain(op, a.grain);
  check_tokens(op, a, a.state.record_k.shape[1], K, Hv, V, a.state.record_g.shape[3]);
}

void check_verify(const GdnVerifyArgs& a) {
  check_window("gdn_verify", a);
  const int64_t R = a.state.record_k.shape[2];
  for (int32_t b = 0; b < a.rows.count; b++) {
    if (a.rows.seat[b] < 0) continue;
    check_cursor("gdn_verify", a.rows, b, a.rows.first[b], R, a.grain);
    const int64_t live = a.rows.first[b] - a.rows.folded[b] + a.rows.length(b);
    check(live <= R,
          "gdn_verify: row {}: {} records and {} window tokens exceed the ring of {}; --linear-replayssm-cache-len", b,
          a.rows.first[b] - a.rows.folded[b], a.rows.length(b), R);
  }
}

void check_prefill(const GdnVerifyArgs& a) {
  check_window("gdn_prefill", a);
  const int64_t R = a.state.record_k.shape[2];
  for (int32_t b = 0; b < a.rows.count; b++) {
    if (a.rows.seat[b] < 0) continue;
    const int64_t end = a.rows.first[b] + a.rows.length(b);
    check_cursor("gdn_prefill", a.rows, b, end, R, a.grain);
    check(end - a.rows.fold_to[b] <= R, "gdn_prefill: row {}: {} tail records exceed the ring of {}", b,
          end - a.rows.fold_to[b], R);
    check(a.rows.fold_to[b] >= a.rows.first[b] || end - a.rows.folded[b] <= R,
          "gdn_prefill: row {}: prefill without a fold past {} would overwrite live records in the ring of {}", b,
          a.rows.first[b], R);
  }
}

void check(const GdnFoldArgs& a) {
  const Rows& rows = a.rows;
  check_state("gdn_fold", a.state), check_grain("gdn_fold", a.grain);
  const int64_t places = a.state.checkpoint.shape[0];
  check(a.layers >= 1 && places % a.layers == 0,
        "gdn_fold: layers is {}, want at least 1 and a divisor of the {} places of the state", a.layers, places);
  check(places <= std::numeric_limits<int32_t>::max(), "gdn_fold: {} places of all layers, want < 2^31", places);
  check_seats(rows, places / a.layers);
  check(rows.count == 0 || (rows.first && rows.folded && rows.fold_to),
        "gdn_fold: rows of {} need first, folded and fold_to", rows.count);
  for (int32_t b = 0; b < rows.count; b++) {
    if (rows.seat[b] >= 0) check_cursor("gdn_fold", rows, b, rows.first[b], a.state.record_k.shape[2], a.grain);
  }
}

}  // namespace deltaring
