// The specification of the replay ring, in double. Only what is stored is rounded: records, and the state at grid
// points.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/reference/ops.h"

namespace deltaring::reference {

namespace {

// One token as a value head sees it.
struct Token {
  std::vector<double> q, k;  // [K] normalised, q scaled
  std::vector<double> v;     // [V]
  double g, beta;
};

std::vector<double> unit(std::vector<double> x, double scale) {
  double squares = 0;
  for (double e : x) squares += e * e;
  for (double& e : x) e = e / std::sqrt(squares + 1e-6) * scale;
  return x;
}

// `count` elements from element `first` of a buffer, as they read back after a store as `stored`.
std::vector<double> read(const void* data, DType dtype, int64_t first, int64_t count, DType stored) {
  std::vector<double> x(count);
  for (int64_t i = 0; i < count; i++) x[i] = round_to(stored, load_as_float(data, dtype, first + i));
  return x;
}

Token from_record(const GdnState& s, int32_t seat, int64_t head, int64_t p) {
  const int64_t Hv = s.checkpoint.shape[1], V = s.checkpoint.shape[2], K = s.checkpoint.shape[3];
  const int64_t key_head = head / (Hv / s.record_k.shape[1]), slot = p % s.record_k.shape[2];
  const DType dtype = s.record_k.dtype;
  return {.q = {},
          .k = unit(read(s.record_k.data, dtype, s.record_k.offset(seat, key_head, slot), K, dtype), 1),
          .v = read(s.record_v.data, dtype, s.record_v.offset(seat, head, slot), V, dtype),
          .g = *s.record_g.f32(seat, head, slot),
          .beta = *s.record_beta.f32(seat, head, slot)};
}

Token from_window(const GdnVerifyArgs& a, int64_t head, int64_t token) {
  const int64_t Hv = a.v.shape[1], V = a.v.shape[2], Hk = a.k.shape[1], K = a.k.shape[2], key_head = head / (Hv / Hk);
  const DType record = a.state.record_k.dtype;
  return {.q = unit(read(a.q.data, DType::f32, a.q.offset(token, key_head), K, DType::f32), 1 / std::sqrt(K)),
          .k = unit(read(a.k.data, DType::f32, a.k.offset(token, key_head), K, record), 1),
          .v = read(a.v.data, DType::f32, a.v.offset(token, head), V, record),
          .g = *a.g.f32(token, head),
          .beta = *a.beta.f32(token, head)};
}

// The running state of one value head on its way from the checkpoint through positions folded, folded+1, ...
class Walk {
 public:
  Walk(const GdnState& state, const Rows& rows, int32_t b, int64_t head, int64_t grain)
      : checkpoint_(state.checkpoint),
        seat_(rows.seat[b]),
        head_(head),
        folded_(rows.folded[b]),
        fold_to_(rows.fold_to[b]),
        grain_(grain),
        V_(checkpoint_.shape[2]),
        K_(checkpoint_.shape[3]),
        S_(V_ * K_) {
    for (int64_t v = 0; v < V_; v++) {
      for (int64_t k = 0; k < K_; k++) S_[v * K_ + k] = load_as_float(checkpoint_.data, checkpoint_.dtype, at(v, k));
    }
  }

  // The state now stands before position p: round it on a grid point, store it at its destination.
  void arrive(int64_t p) {
    const bool on_grid = grain_ != 0 && p % grain_ == 0, store = p == fold_to_;
    if (p == folded_ || !(on_grid || store)) return;
    for (int64_t v = 0; v < V_; v++) {
      for (int64_t k = 0; k < K_; k++) {
        double& s = S_[v * K_ + k];
        s = round_to(checkpoint_.dtype, static_cast<float>(s));
        if (store) store_from_float(checkpoint_.data, checkpoint_.dtype, at(v, k), static_cast<float>(s));
      }
    }
  }

  // S <- e^g S + d k^T with d = beta (v - e^g S k); out[V] = S q when asked for.
  void step(const Token& t, float* out) {
    const double decay = std::exp(t.g);
    for (int64_t v = 0; v < V_; v++) {
      double* row = &S_[v * K_];
      double projected = 0, o = 0;
      for (int64_t k = 0; k < K_; k++) row[k] *= decay, projected += row[k] * t.k[k];
      const double d = t.beta * (t.v[v] - projected);
      for (int64_t k = 0; k < K_; k++) row[k] += d * t.k[k];
      for (int64_t k = 0; k < K_ && out; k++) o += row[k] * t.q[k];
      if (out) out[v] = static_cast<float>(o);
    }
  }

 private:
  int64_t at(int64_t v, int64_t k) const { return checkpoint_.offset(seat_, head_, v, k); }

  const View<4>& checkpoint_;
  int32_t seat_;
  int64_t head_, folded_, fold_to_, grain_, V_, K_;
  std::vector<double> S_;
};

void append_records(const GdnVerifyArgs& a, int32_t b) {
  const GdnState& s = a.state;
  const auto [seats, Hk, R, K] = s.record_k.shape;
  const int64_t Hv = a.v.shape[1], V = a.v.shape[2];
  const int32_t seat = a.rows.seat[b];
  for (int32_t i = 0; i < a.rows.length(b); i++) {
    const int64_t p = a.rows.first[b] + i, token = a.rows.start[b] + i, slot = p % R;
    if (p < a.rows.fold_to[b]) continue;
    for (int64_t h = 0; h < Hk; h++) {
      for (int64_t d = 0; d < K; d++)
        store_from_float(s.record_k.data, s.record_k.dtype, s.record_k.offset(seat, h, slot, d), *a.k.f32(token, h, d));
    }
    for (int64_t h = 0; h < Hv; h++) {
      for (int64_t d = 0; d < V; d++)
        store_from_float(s.record_v.data, s.record_v.dtype, s.record_v.offset(seat, h, slot, d), *a.v.f32(token, h, d));
      *s.record_g.f32(seat, h, slot) = *a.g.f32(token, h);
      *s.record_beta.f32(seat, h, slot) = *a.beta.f32(token, h);
    }
  }
}

void advance(const GdnVerifyArgs& a) {
  const int64_t Hv = a.v.shape[1], V = a.v.shape[2];
  for (int32_t b = 0; b < a.rows.count; b++) {
    const int64_t begin = a.rows.start[b], length = a.rows.length(b);
    for (int64_t head = 0; head < Hv; head++) {
      if (a.rows.seat[b] < 0) {
        for (int64_t i = 0; i < length; i++) std::fill_n(a.out.f32(begin + i, head), V, 0.0f);
        continue;
      }
      const int64_t folded = a.rows.folded[b], first = a.rows.first[b];
      Walk walk(a.state, a.rows, b, head, a.grain);
      for (int64_t p = folded; p < first; p++)
        walk.arrive(p), walk.step(from_record(a.state, a.rows.seat[b], head, p), nullptr);
      for (int64_t i = 0; i < length; i++) {
        walk.arrive(first + i);
        walk.step(from_window(a, head, begin + i), a.out.f32(begin + i, head));
      }
      walk.arrive(first + length);
    }
    if (a.rows.seat[b] >= 0) append_records(a, b);  // after every head has read the old records
  }
}

}  // namespace

void gdn_gates(const GdnGatesArgs& args, Stream&) {
  check(args);
  for (int64_t t = 0; t < args.a.shape[0]; t++) {
    for (int64_t h = 0; h < args.a.shape[1]; h++) {
      const double x = static_cast<double>(*args.a.f32(t, h)) + args.dt_bias[h];
      const double softplus = x > 20 ? x : std::log1p(std::exp(x));
      *args.g.f32(t, h) = static_cast<float>(-std::exp(static_cast<double>(args.A_log[h])) * softplus);
      *args.beta.f32(t, h) = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(*args.b.f32(t, h)))));
    }
  }
}

void gdn_verify(const GdnVerifyArgs& args, Stream&) { check_verify(args), advance(args); }

void gdn_prefill(const GdnVerifyArgs& args, Stream&) { check_prefill(args), advance(args); }

void gdn_fold(const GdnFoldArgs& args, Stream&) {
  check(args);
  for (int32_t b = 0; b < args.rows.count; b++) {
    if (args.rows.seat[b] < 0) continue;
    for (int64_t head = 0; head < args.state.checkpoint.shape[1]; head++) {
      Walk walk(args.state, args.rows, b, head, args.grain);
      for (int64_t p = args.rows.folded[b]; p < args.rows.fold_to[b]; p++) {
        walk.arrive(p), walk.step(from_record(args.state, args.rows.seat[b], head, p), nullptr);
      }
      walk.arrive(args.rows.fold_to[b]);
    }
  }
}

}  // namespace deltaring::reference
