#include <algorithm>
#include <cmath>

#include "backends/cpu/gdn_head.h"
#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"
#include "ops/in_f32.h"

namespace deltaring::cpu {

namespace {

// One value head of row b from its checkpoint through records and window. Cuts stand on grid points and on multiples
// of the longest segment, functions of the position alone; off the grid a segment is one token.
class Replay {
 public:
  Replay(const GdnState& state, const Rows& rows, int64_t grain, QkNorm norm, float scale, int32_t b, int64_t head)
      : state_(state),
        seat_(rows.seat[b]),
        folded_(rows.folded[b]),
        first_(rows.first[b]),
        fold_to_(rows.fold_to[b]),
        grain_(grain),
        head_(head),
        key_head_(head / (state.checkpoint.shape[1] / state.record_k.shape[1])),
        checkpoint_(state.checkpoint[seat_][head]),
        walk_(checkpoint_, state.record_g.shape[3], state.record_k.dtype, norm, scale, GdnScratch::of_this_thread()) {}

  // All positions up to end; window(p) adds those from first on.
  template <class Window>
  void run(int64_t end, const Window& window) {
    for (int64_t p = folded_; p < end;) {
      const int64_t cut = std::min(end, grain_ ? (p / grain_ + 1) * grain_ : p + 1);
      walk_.open(cut - p, std::clamp<int64_t>(first_ - p, 0, cut - p));
      for (; p < cut; p++) p < first_ ? record(p) : window(walk_, p);
      const bool store = cut == fold_to_;
      if (store || cut < end) walk_.leave(store || grain_ != 0, store ? checkpoint_ : View<2>());
    }
    walk_.finish();
  }

 private:
  void record(int64_t p) {
    const int64_t slot = p % state_.record_k.shape[2];
    walk_.add({.k = state_.record_k[seat_][key_head_][slot].data,
               .v = state_.record_v[seat_][head_][slot].data,
               .stored = state_.record_k.dtype,
               .q = nullptr,
               .g = state_.record_g.f32(seat_, head_, slot),
               .beta = *state_.record_beta.f32(seat_, head_, slot),
               .out = nullptr});
  }

  const GdnState& state_;
  const int32_t seat_;
  const int64_t folded_, first_, fold_to_, grain_, head_, key_head_;
  const View<2> checkpoint_;
  GdnHead walk_;
};

void append_records(const GdnVerifyArgs& a, int32_t b) {
  const GdnState& s = a.state;
  const int64_t Hk = s.record_k.shape[1], R = s.record_k.shape[2], Hv = a.v.shape[1];
  const int32_t seat = a.rows.seat[b];
  for (int32_t i = 0; i < a.rows.length(b); i++) {
    const int64_t p = a.rows.first[b] + i, token = a.rows.start[b] + i, slot = p % R;
    if (p < a.rows.fold_to[b]) continue;
    for (int64_t h = 0; h < Hk; h++) store_rounded(a.k.f32(token, h), s.record_k[seat][h][slot]);
    for (int64_t h = 0; h < Hv; h++) {
      store_rounded(a.v.f32(token, h), s.record_v[seat][h][slot]);
      std::copy_n(a.g.f32(token, h), a.g.shape[2], s.record_g.f32(seat, h, slot));
      *s.record_beta.f32(seat, h, slot) = *a.beta.f32(token, h);
    }
  }
}

void advance(const GdnVerifyArgs& a, Stream& stream) {
  const int64_t Hv = a.v.shape[1], V = a.v.shape[2];
  ThreadPool& pool = pool_of(stream);
  pool.parallel_for(a.rows.count * Hv, [&](int64_t task) {
    const int32_t b = static_cast<int32_t>(task / Hv);
    const int64_t h = task % Hv, begin = a.rows.start[b], length = a.rows.length(b);
    if (a.rows.seat[b] < 0) {
      for (int64_t i = 0; i < length; i++) std::fill_n(a.out.f32(begin + i, h), V, 0.0f);
      return;
    }
    const int64_t first = a.rows.first[b], key_head = h / (Hv / a.k.shape[1]);
    if (length == 0 && a.rows.fold_to[b] == a.rows.folded[b]) return;
    Replay replay(a.state, a.rows, a.grain, a.norm, a.scale, b, h);
    replay.run(first + length, [&](GdnHead& head, int64_t p) {
      const int64_t token = begin + (p - first);
      head.add({.k = a.k.f32(token, key_head),
                .v = a.v.f32(token, h),
                .stored = DType::f32,
                .q = a.q.f32(token, key_head),
                .g = a.g.f32(token, h),
                .beta = *a.beta.f32(token, h),
                .out = a.out.f32(token, h)});
    });
  });
  // Sibling value heads share a key ring, so records are written once every head has read the old ones.
  pool.parallel_for(a.rows.count, [&](int64_t b) {
    if (a.rows.seat[b] >= 0) append_records(a, static_cast<int32_t>(b));
  });
}

}  // namespace

// Memory traffic: a, b, g and beta once, 8 Hv (G + 1) bytes a token.
void gdn_gates(const GdnGatesArgs& args, Stream&) {
  check(args);
  const auto [tokens, Hv, G] = args.a.shape;
  for (int64_t t = 0; t < tokens; t++) {
    for (int64_t h = 0; h < Hv; h++) {
      const float rate = std::exp(args.A_log[h]);
      for (int64_t i = 0; i < G; i++) {
        const float x = *args.a.f32(t, h, i) + args.dt_bias[h * G + i];
        *args.g.f32(t, h, i) = -rate * (x > 20 ? x : std::log1p(std::exp(x)));
      }
      *args.beta.f32(t, h) = 1 / (1 + std::exp(-*args.b.f32(t, h)));
    }
  }
}

// Memory traffic of a row: its checkpoint once (written too where a fold is due), n records of Hk K + Hv V elements and
// 4 Hv (G + 1) bytes in and T out, the window q, k, v, g, beta and out once.
void gdn_verify(const GdnVerifyArgs& args, Stream& stream) {
  check_verify(args);
  in_f32(args, gdn_gates, stream, [&](const GdnVerifyArgs& a) { advance(a, stream); });
}

// Memory traffic of a row: as gdn_verify, but of its tokens only those from fold_to on are written as records.
void gdn_prefill(const GdnVerifyArgs& args, Stream& stream) {
  check_prefill(args);
  in_f32(args, gdn_gates, stream, [&](const GdnVerifyArgs& a) { advance(a, stream); });
}

// Memory traffic of a row with a fold in a layer: its checkpoint in and out, the records [folded, fold_to) once.
void gdn_fold(const GdnFoldArgs& args, Stream& stream) {
  check(args);
  const int64_t Hv = args.state.checkpoint.shape[1], heads = args.rows.count * Hv;
  pool_of(stream).parallel_for(args.layers * heads, [&](int64_t task) {
    const int32_t b = static_cast<int32_t>(task % heads / Hv);
    if (args.rows.seat[b] < 0 || args.rows.fold_to[b] == args.rows.folded[b]) return;
    const GdnState state = layer_of(args.state, args.layers, task / heads);
    Replay replay(state, args.rows, args.grain, args.norm, 0, b, task % Hv);
    replay.run(args.rows.fold_to[b], [](GdnHead&, int64_t) {});
  });
}

}  // namespace deltaring::cpu
