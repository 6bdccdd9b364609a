// The specification of the replay ring, in double. Only what is stored is rounded: records, and the state at grid
// points.
#include <algorithm>
#include <cmath>

#include "backends/reference/delta_rule.h"
#include "backends/reference/ops.h"
#include "ops/in_f32.h"

namespace deltaring::reference {

namespace {

// The state of one value head on its way from the checkpoint through positions folded, folded+1, ...
class Walk {
 public:
  Walk(const GdnState& state, const Rows& rows, int32_t b, int64_t head, int64_t grain)
      : checkpoint_(state.checkpoint[rows.seat[b]][head]),
        folded_(rows.folded[b]),
        fold_to_(rows.fold_to[b]),
        grain_(grain),
        rule_(checkpoint_) {}

  // The state now stands before position p: round it on a grid point, store it at its destination.
  void arrive(int64_t p) {
    const bool on_grid = grain_ != 0 && p % grain_ == 0, store = p == fold_to_;
    if (p == folded_ || !(on_grid || store)) return;
    rule_.round(checkpoint_.dtype);
    if (store) rule_.store(checkpoint_);
  }
  // The token at position p.
  void step(int64_t p, const Token& token, float* out) { arrive(p), rule_.step(token, out); }

 private:
  const View<2> checkpoint_;
  int64_t folded_, fold_to_, grain_;
  DeltaRule rule_;
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
      std::copy_n(a.g.f32(token, h), a.g.shape[2], s.record_g.f32(seat, h, slot));
      *s.record_beta.f32(seat, h, slot) = *a.beta.f32(token, h);
    }
  }
}

void advance(const GdnVerifyArgs& a) {
  const int64_t Hv = a.v.shape[1], V = a.v.shape[2];
  const Inputs inputs{a.q, a.k, a.v, a.g, a.beta, a.norm, a.scale, a.state.record_k.dtype};
  for (int32_t b = 0; b < a.rows.count; b++) {
    const int32_t seat = a.rows.seat[b];
    const int64_t begin = a.rows.start[b], length = a.rows.length(b);
    for (int64_t head = 0; head < Hv; head++) {
      if (seat < 0) {
        for (int64_t i = 0; i < length; i++) std::fill_n(a.out.f32(begin + i, head), V, 0.0f);
        continue;
      }
      const int64_t folded = a.rows.folded[b], first = a.rows.first[b];
      Walk walk(a.state, a.rows, b, head, a.grain);
      for (int64_t p = folded; p < first; p++) walk.step(p, record_of(a.state, a.norm, seat, head, p), nullptr);
      for (int64_t i = 0; i < length; i++) {
        walk.step(first + i, token_of(inputs, head, begin + i), a.out.f32(begin + i, head));
      }
      walk.arrive(first + length);
    }
    if (seat >= 0) append_records(a, b);  // after every head has read the old records
  }
}

}  // namespace

void gdn_gates(const GdnGatesArgs& args, Stream&) {
  check(args);
  const auto [tokens, Hv, G] = args.a.shape;
  for (int64_t t = 0; t < tokens; t++) {
    for (int64_t h = 0; h < Hv; h++) {
      for (int64_t i = 0; i < G; i++) {
        const double x = static_cast<double>(*args.a.f32(t, h, i)) + args.dt_bias[h * G + i];
        const double softplus = x > 20 ? x : std::log1p(std::exp(x));
        *args.g.f32(t, h, i) = static_cast<float>(-std::exp(static_cast<double>(args.A_log[h])) * softplus);
      }
      *args.beta.f32(t, h) = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(*args.b.f32(t, h)))));
    }
  }
}

void gdn_verify(const GdnVerifyArgs& args, Stream& stream) {
  check_verify(args);
  in_f32(args, gdn_gates, stream, advance);
}

void gdn_prefill(const GdnVerifyArgs& args, Stream& stream) {
  check_prefill(args);
  in_f32(args, gdn_gates, stream, advance);
}

void gdn_fold(const GdnFoldArgs& args, Stream&) {
  check(args);
  for (int64_t layer = 0; layer < args.layers; layer++) {
    const GdnState state = layer_of(args.state, args.layers, layer);
    for (int32_t b = 0; b < args.rows.count; b++) {
      if (args.rows.seat[b] < 0) continue;
      for (int64_t head = 0; head < state.checkpoint.shape[1]; head++) {
        Walk walk(state, args.rows, b, head, args.grain);
        for (int64_t p = args.rows.folded[b]; p < args.rows.fold_to[b]; p++)
          walk.step(p, record_of(state, args.norm, args.rows.seat[b], head, p), nullptr);
        walk.arrive(args.rows.fold_to[b]);
      }
    }
  }
}

}  // namespace deltaring::reference
