#include "ops/gdn.h"

#include "base/error.h"

namespace deltaring {

namespace {

void check_f32(const char* name, DType dtype) {
  check(dtype == DType::f32, "gdn: {} is {}, want float32", name, name_of(dtype));
}

template <int N>
void check_shape(const char* name, const View<N>& view, std::array<int64_t, N> want) {
  for (int d = 0; d < N; d++) {
    check(view.shape[d] == want[d], "gdn: {} has {} in dimension {}, want {}", name, view.shape[d], d, want[d]);
  }
  check(view.stride[N - 1] == 1, "gdn: the last dimension of {} must be contiguous", name);
}

void check_state(const GdnState& s, int64_t grain) {
  const auto [seats, Hv, V, K] = s.checkpoint.shape;
  const int64_t Hk = s.record_k.shape[1], R = s.record_k.shape[2];
  check(Hk >= 1 && Hv >= 1 && Hv % Hk == 0, "gdn: Hv = {} is no multiple of Hk = {}", Hv, Hk);
  check(s.record_k.dtype == s.record_v.dtype, "gdn: record_k is {}, record_v {}", name_of(s.record_k.dtype),
        name_of(s.record_v.dtype));
  check_f32("record_g", s.record_g.dtype);
  check_f32("record_beta", s.record_beta.dtype);
  check_shape("checkpoint [seats, Hv, V, K]", s.checkpoint, {seats, Hv, V, K});
  check_shape("record_k [seats, Hk, R, K]", s.record_k, {seats, Hk, R, K});
  check_shape("record_v [seats, Hv, R, V]", s.record_v, {seats, Hv, R, V});
  check_shape("record_g [seats, Hv, R]", s.record_g, {seats, Hv, R});
  check_shape("record_beta [seats, Hv, R]", s.record_beta, {seats, Hv, R});
  check(grain >= 0, "gdn: grain is {}, want F or 0", grain);
}

// What every row must satisfy, whatever is done with it.
void check_cursor(const Rows& rows, int32_t b, int64_t end, int64_t R, int64_t grain) {
  const int64_t folded = rows.folded[b], first = rows.first[b], fold_to = rows.fold_to[b];
  check(0 <= folded && folded <= first, "gdn: row {}: folded {} is not in [0, first = {}]", b, folded, first);
  check(folded <= fold_to && fold_to <= end, "gdn: row {}: fold_to {} is not in [folded, {}] = [{}, {}]", b, fold_to,
        end, folded, end);
  check(first - folded <= R, "gdn: row {}: {} records in a ring of {}", b, first - folded, R);
  check(grain == 0 || (folded % grain == 0 && fold_to % grain == 0),
        "gdn: row {}: folded {} and fold_to {} must be multiples of the grain {}", b, folded, fold_to, grain);
}

void check_window(const GdnVerifyArgs& a) {
  const auto [seats, Hv, V, K] = a.state.checkpoint.shape;
  const int64_t tokens = a.q.shape[0], Hk = a.state.record_k.shape[1];
  check_state(a.state, a.grain);
  for (DType t : {a.q.dtype, a.k.dtype, a.v.dtype, a.g.dtype, a.beta.dtype, a.out.dtype})
    check_f32("q, k, v, g, beta or out", t);
  check_shape("q [tokens, Hk, K]", a.q, {tokens, Hk, K});
  check_shape("k [tokens, Hk, K]", a.k, {tokens, Hk, K});
  check_shape("v [tokens, Hv, V]", a.v, {tokens, Hv, V});
  check_shape("g [tokens, Hv]", a.g, {tokens, Hv});
  check_shape("beta [tokens, Hv]", a.beta, {tokens, Hv});
  check_shape("out [tokens, Hv, V]", a.out, {tokens, Hv, V});
  check(a.rows, seats, tokens);
  check(a.rows.count == 0 || (a.rows.folded && a.rows.fold_to), "gdn: rows need folded and fold_to");
}

}  // namespace

void check(const GdnGatesArgs& a) {
  const auto [tokens, Hv] = a.a.shape;
  for (DType t : {a.a.dtype, a.b.dtype, a.g.dtype, a.beta.dtype}) check_f32("a, b, g or beta", t);
  check_shape("a [tokens, Hv]", a.a, {tokens, Hv});
  check_shape("b [tokens, Hv]", a.b, {tokens, Hv});
  check_shape("g [tokens, Hv]", a.g, {tokens, Hv});
  check_shape("beta [tokens, Hv]", a.beta, {tokens, Hv});
  check(a.A_log && a.dt_bias, "gdn: A_log [Hv] and dt_bias [Hv] must be given");
}

void check_verify(const GdnVerifyArgs& a) {
  check_window(a);
  const int64_t R = a.state.record_k.shape[2];
  for (int32_t b = 0; b < a.rows.count; b++) {
    if (a.rows.seat[b] < 0) continue;
    check_cursor(a.rows, b, a.rows.first[b], R, a.grain);
    const int64_t live = a.rows.first[b] - a.rows.folded[b] + a.rows.length(b);
    check(live <= R, "gdn: row {}: {} records and {} window tokens exceed the ring of {}; --linear-replayssm-cache-len",
          b, a.rows.first[b] - a.rows.folded[b], a.rows.length(b), R);
  }
}

void check_prefill(const GdnVerifyArgs& a) {
  check_window(a);
  const int64_t R = a.state.record_k.shape[2];
  for (int32_t b = 0; b < a.rows.count; b++) {
    if (a.rows.seat[b] < 0) continue;
    const int64_t end = a.rows.first[b] + a.rows.length(b);
    check_cursor(a.rows, b, end, R, a.grain);
    check(end - a.rows.fold_to[b] <= R, "gdn: row {}: {} tail records exceed the ring of {}", b,
          end - a.rows.fold_to[b], R);
    check(a.rows.fold_to[b] >= a.rows.first[b] || end - a.rows.folded[b] <= R,
          "gdn: row {}: prefill without a fold past {} would overwrite live records in the ring of {}", b,
          a.rows.first[b], R);
  }
}

void check(const GdnFoldArgs& a) {
  check_state(a.state, a.grain);
  check(a.rows.count >= 0 && (a.rows.count == 0 || (a.rows.seat && a.rows.first && a.rows.folded && a.rows.fold_to)),
        "gdn_fold: rows of {} need seat, first, folded and fold_to", a.rows.count);
  for (int32_t b = 0; b < a.rows.count; b++) {
    const int32_t seat = a.rows.seat[b];
    check(seat >= -1 && seat < a.state.checkpoint.shape[0], "gdn_fold: rows.seat[{}] is {}, want -1 or [0, {})", b,
          seat, a.state.checkpoint.shape[0]);
    if (seat >= 0) check_cursor(a.rows, b, a.rows.first[b], a.state.record_k.shape[2], a.grain);
  }
}

}  // namespace deltaring
