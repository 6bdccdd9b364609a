// Faults put around the conv, the gates, the fold and the host rules of a working backend.
#pragma once
#include "ops/mutant_windows.h"

namespace deltaring::replay::mutant {

// --- conv ---

// The oldest tap sees a zero when it lies in the ring.
inline void conv_window_one_short(const ConvArgs& args, Stream& stream) {
  const int64_t C = args.x.shape[1], Rc = args.ring.shape[1], back = args.weight.shape[1] - 1;
  std::vector<std::vector<float>> saved(args.rows.count);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    const int64_t p = args.rows.first[b] - back;
    if (p < 0 || args.rows.length(b) == 0) return;
    float* slot = args.ring.f32(seat, p % Rc);
    saved[b].assign(slot, slot + C);
    std::fill_n(slot, C, 0.0f);
  });
  base().conv(args, stream);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    const int64_t p = args.rows.first[b] - back;
    if (!saved[b].empty() && p + Rc >= args.rows.first[b] + args.rows.length(b))
      std::ranges::copy(saved[b], args.ring.f32(seat, p % Rc));
  });
}

// Steps without drafts read and write one slot further.
inline void conv_single_tokens_shifted(const ConvArgs& args, Stream& stream) {
  std::vector<int64_t> first(args.rows.first, args.rows.first + args.rows.count);
  each_seat(args.rows, [&](int32_t b, int32_t) { first[b] += args.rows.length(b) == 1; });
  ConvArgs shifted = args;
  shifted.rows.first = first.data();
  base().conv(shifted, stream);
}

// --- gates ---

inline void gates_beta_through_bf16(const GdnGatesArgs& args, Stream& stream) {
  base().gdn_gates(args, stream);
  for (int64_t t = 0; t < args.beta.shape[0]; t++)
    for (int64_t j = 0; j < args.beta.shape[1]; j++) *args.beta.f32(t, j) = round_to(DType::bf16, *args.beta.f32(t, j));
}

// --- fold, commit, stream ---

inline void fold_does_nothing(const GdnFoldArgs&, Stream&) {}

inline Cursor commit_one_less(Cursor c, int64_t fold_to, int64_t acc) {
  return {.folded = fold_to, .pos = c.pos + std::max<int64_t>(acc - 1, 0)};
}
inline Cursor commit_one_more(Cursor c, int64_t fold_to, int64_t acc) {
  return {.folded = fold_to, .pos = c.pos + acc + 1};
}
inline Cursor commit_at_least_one(Cursor c, int64_t fold_to, int64_t acc) {
  return {.folded = fold_to, .pos = c.pos + std::max<int64_t>(acc, 1)};
}
inline Cursor commit_clamped_to_the_conv(Cursor c, int64_t fold_to, int64_t acc) {
  return {.folded = fold_to, .pos = c.pos + std::min<int64_t>(acc, 3)};
}
inline Cursor commit_forgets_the_fold(Cursor c, int64_t, int64_t acc) {
  return {.folded = c.folded, .pos = c.pos + acc};
}
inline Cursor commit_forgets_the_fold_of_a_cancelled_row(Cursor c, int64_t fold_to, int64_t acc) {
  return acc == 0 ? c : Cursor{.folded = fold_to, .pos = c.pos + acc};
}

// A stream that knows its threads, for a backend whose third thread rounds differently.
struct CountedStream : Stream {
  CountedStream(int threads) : threads(threads), inner(base().make_stream(threads)) {}
  int threads;
  std::unique_ptr<Stream> inner;
};
inline Stream& inner(Stream& s) { return *static_cast<CountedStream&>(s).inner; }

inline void depend_on_threads(OpTable& t) {
  t.make_stream = [](int threads) -> std::unique_ptr<Stream> { return std::make_unique<CountedStream>(threads); };
  t.conv = [](const ConvArgs& a, Stream& s) { base().conv(a, inner(s)); };
  t.gdn_gates = [](const GdnGatesArgs& a, Stream& s) { base().gdn_gates(a, inner(s)); };
  t.gdn_prefill = [](const GdnVerifyArgs& a, Stream& s) { base().gdn_prefill(a, inner(s)); };
  t.gdn_fold = [](const GdnFoldArgs& a, Stream& s) { base().gdn_fold(a, inner(s)); };
  t.gdn_verify = [](const GdnVerifyArgs& a, Stream& s) {
    base().gdn_verify(a, inner(s));
    if (static_cast<CountedStream&>(s).threads == 3 && a.rows.count > 0 && a.rows.length(0) > 0 && a.rows.seat[0] >= 0)
      *a.out.f32(0, 0, 0) = std::nextafter(*a.out.f32(0, 0, 0), 2.0f);
  };
}

}  // namespace deltaring::replay::mutant
