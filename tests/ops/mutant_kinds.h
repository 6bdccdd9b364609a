// Faults around a working backend in what kinds of layers differ in: gate channels, norm, scale, grain, ragged rows.
#pragma once
#include "ops/mutant_windows.h"

namespace deltaring::replay::mutant {

// A view's elements in memory of their own, dense.
struct Copy {
  std::vector<float> data;
  View<3> view;

  explicit Copy(const View<3>& from) : data(from.shape[0] * from.shape[1] * from.shape[2]) {
    view = dense<3>(data.data(), DType::f32, from.shape);
    for (int64_t t = 0; t < from.shape[0]; t++)
      for (int64_t h = 0; h < from.shape[1]; h++) std::copy_n(from.f32(t, h), from.shape[2], view.f32(t, h));
  }
  Copy(const Copy&) = delete;
};

// The window's last channel keeps everything.
inline void one_channel_never_decays(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  const Copy g(args.g);
  const auto [tokens, Hv, G] = args.g.shape;
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t h = 0; h < Hv; h++) *g.view.f32(t, h, G - 1) = 0;
  GdnVerifyArgs changed = args;
  changed.g = g.view;
  call(changed, stream, prefill);
}

// The window takes the first channel's gate for the head's, as GDN has it.
inline void channel_gates_read_as_one(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  const Copy g(args.g);
  const auto [tokens, Hv, G] = args.g.shape;
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t h = 0; h < Hv; h++) std::fill_n(g.view.f32(t, h), G, *g.view.f32(t, h, 0));
  GdnVerifyArgs changed = args;
  changed.g = g.view;
  call(changed, stream, prefill);
}

// All channels of a head take the bias of its first.
inline void channel_bias_read_as_one(const GdnGatesArgs& args, Stream& stream) {
  const auto [tokens, Hv, G] = args.a.shape;
  std::vector<float> bias(Hv * G);
  for (int64_t i = 0; i < Hv * G; i++) bias[i] = args.dt_bias[i / G * G];
  GdnGatesArgs changed = args;
  changed.dt_bias = bias.data();
  base().gdn_gates(changed, stream);
}

// Outputs are linear in q^, so a q that was not normalised shows as its length.
inline void q_norm_skipped(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  call(args, stream, prefill);
  const auto [tokens, Hk, K] = args.q.shape;
  const auto [outputs, Hv, V] = args.out.shape;
  for (int64_t t = 0; t < tokens; t++) {
    for (int64_t h = 0; h < Hv; h++) {
      const float* q = args.q.f32(t, h / (Hv / Hk));
      float squares = 1e-6f;
      for (int64_t i = 0; i < K; i++) squares += q[i] * q[i];
      for (int64_t i = 0; i < V; i++) *args.out.f32(t, h, i) *= std::sqrt(squares);
    }
  }
}

inline void scale_ignored(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  GdnVerifyArgs changed = args;
  changed.scale = 0;
  call(changed, stream, prefill);
}

// A token on a grid point sees the state before it is rounded: the segment ends one token late.
inline void rounded_one_token_late(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  if (prefill || args.grain == 0) return call(args, stream, prefill);
  GdnVerifyArgs late = args;
  late.grain = 0, late.rows.fold_to = args.rows.folded;
  base().gdn_verify(late, stream);
  const Copy unrounded(args.out);
  call(args, stream, prefill);
  each_seat(args.rows, [&](int32_t b, int32_t) {
    for (int32_t i = 0; i < args.rows.length(b); i++) {
      const int64_t p = args.rows.first[b] + i, t = args.rows.start[b] + i;
      for (int64_t h = 0; h < args.out.shape[1] && p > 0 && p % args.grain == 0; h++)
        std::copy_n(unrounded.view.f32(t, h), args.out.shape[2], args.out.f32(t, h));
    }
  });
}

// The stored checkpoint holds F+1 tokens.
inline void checkpoint_one_token_late(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  call(args, stream, prefill);
  const size_t count = args.rows.count;
  std::vector<int32_t> seats(count, -1);
  std::vector<int64_t> from(count), to(count);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    from[b] = args.rows.fold_to[b], to[b] = from[b] + 1;
    if (from[b] > args.rows.folded[b] && to[b] <= args.rows.first[b]) seats[b] = seat;
  });
  GdnFoldArgs more{.rows = args.rows, .state = args.state, .grain = 0, .norm = args.norm};
  more.rows.seat = seats.data(), more.rows.folded = from.data(), more.rows.fold_to = to.data();
  base().gdn_fold(more, stream);
}

// Row b is taken from token b * T of the packed list, as if all rows were as long as the longest.
inline void ragged_offsets_taken_as_dense(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  int64_t T = 0;
  for (int32_t b = 0; b < args.rows.count; b++) T = std::max<int64_t>(T, args.rows.length(b));
  const Copy k(args.k);
  for (int32_t b = 0; b < args.rows.count; b++) {
    for (int64_t i = 0; i < args.rows.length(b); i++) {
      const int64_t from = std::min<int64_t>(b * T + i, args.rows.tokens() - 1), to = args.rows.start[b] + i;
      for (int64_t h = 0; h < args.k.shape[1]; h++)
        std::copy_n(args.k.f32(from, h), args.k.shape[2], k.view.f32(to, h));
    }
  }
  GdnVerifyArgs changed = args;
  changed.k = k.view;
  call(changed, stream, prefill);
}

}  // namespace deltaring::replay::mutant
