#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "backends/cpu/gdn_head.h"
#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"
#include "ops/in_f32.h"

namespace deltaring::cpu {

namespace {

// Memory that a thread will need soon: the rest of a head's checkpoint, and the next head.
class Pieces {
 public:
  explicit Pieces(const View<2>& checkpoint) {
    const int64_t V = checkpoint.shape[0], begin = std::min(kMostRowBlock, V);
    add(checkpoint.rows(begin, V - begin));
  }

  std::span<const GdnAhead> all() const { return {pieces_.data(), count_}; }

  // What a value head of row b reads besides its window, and the records it writes up to `end`.
  void add_head(const GdnState& state, const Rows& rows, int32_t b, int64_t head, int64_t end) {
    const int32_t seat = rows.seat[b];
    if (seat < 0) return;
    const int64_t key_head = head / (state.checkpoint.shape[1] / state.record_k.shape[1]);
    add_ring(state.record_k[seat][key_head], rows.folded[b], std::min(rows.first[b], end));
    add_ring(state.record_v[seat][head], rows.folded[b], end);
    const View<2> checkpoint = state.checkpoint[seat][head];
    add(checkpoint.rows(0, std::min(kMostRowBlock, checkpoint.shape[0])));
  }
  void add(const View<2>& rows) {
    if (rows.shape[0] <= 0) return;
    const auto size = static_cast<int64_t>(size_of(rows.dtype));
    const int64_t count = std::min(rows.shape[0], kMost), bytes = rows.shape[1] * size;
    const bool dense = rows.stride[0] == rows.shape[1];
    pieces_[count_++] = {.at = rows.data,
                         .bytes = dense ? bytes * count : bytes,
                         .count = dense ? 1 : count,
                         .stride = rows.stride[0] * size};
  }

 private:
  static constexpr int64_t kMost = 256;  // rows of a piece: long rings and windows would not stay close

  void add_ring(const View<2>& ring, int64_t begin, int64_t end) {
    const int64_t R = ring.shape[0], slot = begin % R, count = std::min(end - begin, R);
    if (count <= 0) return;
    add(ring.rows(slot, std::min(count, R - slot)));
    add(ring.rows(0, count - std::min(count, R - slot)));
  }

  std::array<GdnAhead, 12> pieces_;
  size_t count_ = 0;
};

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

  // All positions up to end; window(p) adds those from first on. What is `ahead` is brought closer meanwhile.
  template <class Window>
  void run(int64_t end, const Window& window, const Pieces& ahead) {
    for (int64_t p = folded_; p < end;) {
      const int64_t cut = std::min(end, grain_ ? (p / grain_ + 1) * grain_ : p + 1);
      walk_.open(cut - p, std::clamp<int64_t>(first_ - p, 0, cut - p));
      for (; p < cut; p++) p < first_ ? record(p) : window(walk_, p);
      const bool store = cut == fold_to_;
      if (store || cut < end) walk_.leave(store || grain_ != 0, store ? checkpoint_ : View<2>());
    }
    walk_.finish(ahead.all());
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

// write(token, slot) for the records that the tokens of row b become.
template <class Write>
void append(const GdnVerifyArgs& a, int32_t b, const Write& write) {
  const int64_t R = a.state.record_k.shape[2];
  for (int32_t i = 0; i < a.rows.length(b); i++) {
    const int64_t p = a.rows.first[b] + i;
    if (p >= a.rows.fold_to[b]) write(a.rows.start[b] + i, p % R);
  }
}

void append_keys(const GdnVerifyArgs& a, int32_t b) {
  const View<3> keys = a.state.record_k[a.rows.seat[b]];
  append(a, b, [&](int64_t token, int64_t slot) {
    for (int64_t h = 0; h < keys.shape[0]; h++) store_rounded(a.k.f32(token, h), keys[h][slot]);
  });
}

void append_head(const GdnVerifyArgs& a, int32_t b, int64_t h) {
  const GdnState& s = a.state;
  const int32_t seat = a.rows.seat[b];
  append(a, b, [&](int64_t token, int64_t slot) {
    store_rounded(a.v.f32(token, h), s.record_v[seat][h][slot]);
    std::copy_n(a.g.f32(token, h), a.g.shape[2], s.record_g.f32(seat, h, slot));
    *s.record_beta.f32(seat, h, slot) = *a.beta.f32(token, h);
  });
}

// The tokens of row b as one head of x [tokens, heads, .] sees them.
View<2> window_of(const View<3>& x, const Rows& rows, int32_t b, int64_t head) {
  return {.data = x.f32(rows.start[b], head),
          .dtype = x.dtype,
          .shape = {rows.length(b), x.shape[2]},
          .stride = {x.stride[0], x.stride[2]}};
}

void advance_head(const GdnVerifyArgs& a, int32_t b, int64_t h, const Pieces& ahead) {
  const int64_t begin = a.rows.start[b], length = a.rows.length(b), first = a.rows.first[b];
  const int64_t key_head = h / (a.v.shape[1] / a.k.shape[1]);
  if (length == 0 && a.rows.fold_to[b] == a.rows.folded[b]) return;
  Replay replay(a.state, a.rows, a.grain, a.norm, a.scale, b, h);
  const auto window = [&](GdnHead& head, int64_t p) {
    const int64_t token = begin + (p - first);
    head.add({.k = a.k.f32(token, key_head),
              .v = a.v.f32(token, h),
              .stored = DType::f32,
              .q = a.q.f32(token, key_head),
              .g = a.g.f32(token, h),
              .beta = *a.beta.f32(token, h),
              .out = a.out.f32(token, h)});
  };
  replay.run(first + length, window, ahead);
  append_head(a, b, h);
}

void advance(const GdnVerifyArgs& a, Stream& stream) {
  const int64_t Hv = a.v.shape[1], V = a.v.shape[2], tasks = a.rows.count * Hv;
  ThreadPool& pool = pool_of(stream);
  pool.parallel_for(tasks, [&](int64_t task) {
    const int32_t b = static_cast<int32_t>(task / Hv);
    const int64_t h = task % Hv, begin = a.rows.start[b], length = a.rows.length(b);
    if (a.rows.seat[b] < 0) {
      for (int64_t i = 0; i < length; i++) std::fill_n(a.out.f32(begin + i, h), V, 0.0f);
      return;
    }
    Pieces ahead(a.state.checkpoint[a.rows.seat[b]][h]);
    if (const int64_t next = task + pool.size(); next < tasks) {
      const int32_t row = static_cast<int32_t>(next / Hv);
      const int64_t head = next % Hv, key_head = head / (Hv / a.k.shape[1]);
      for (const View<3>* x : {&a.k, &a.q}) ahead.add(window_of(*x, a.rows, row, key_head));
      for (const View<3>* x : {&a.v, &a.out}) ahead.add(window_of(*x, a.rows, row, head));
      ahead.add_head(a.state, a.rows, row, head, a.rows.first[row] + a.rows.length(row));
    }
    advance_head(a, b, h, ahead);
  });
  // Sibling value heads share a key ring, so keys are written once every head has read the old ones.
  pool.parallel_for(a.rows.count, [&](int64_t b) {
    if (a.rows.seat[b] >= 0) append_keys(a, static_cast<int32_t>(b));
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
  ThreadPool& pool = pool_of(stream);
  pool.parallel_for(args.layers * heads, [&](int64_t task) {
    const int32_t b = static_cast<int32_t>(task % heads / Hv);
    if (args.rows.seat[b] < 0 || args.rows.fold_to[b] == args.rows.folded[b]) return;
    const GdnState state = layer_of(args.state, args.layers, task / heads);
    Replay replay(state, args.rows, args.grain, args.norm, 0, b, task % Hv);
    Pieces ahead(state.checkpoint[args.rows.seat[b]][task % Hv]);
    if (const int64_t next = task + pool.size(); next < args.layers * heads) {
      const int32_t row = static_cast<int32_t>(next % heads / Hv);
      const GdnState there = layer_of(args.state, args.layers, next / heads);
      ahead.add_head(there, args.rows, row, next % Hv, args.rows.fold_to[row]);
    }
    replay.run(
        args.rows.fold_to[b], [](GdnHead&, int64_t) {}, ahead);
  });
}

}  // namespace deltaring::cpu
