// Faults put around gdn_verify and gdn_prefill of a working backend: what replay, windows and seats can get wrong.
#pragma once
#include "backends/tables.h"
#include "ops/replay_layer.h"

namespace deltaring::replay::mutant {

inline const OpTable& base() { return backend("cpu"); }

inline void call(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  (prefill ? base().gdn_prefill : base().gdn_verify)(args, stream);
}

// Calls f(row, seat) for rows that have one.
template <class F>
inline void each_seat(const Rows& rows, const F& f) {
  for (int32_t b = 0; b < rows.count; b++)
    if (rows.seat[b] >= 0) f(b, rows.seat[b]);
}

template <int N>
float* gate_record(const View<N>& view, int32_t seat, int64_t head, int64_t position) {
  return view.f32(seat, head, position % view.shape[2]);
}

inline std::vector<std::byte> checkpoint_of(const GdnState& s, int32_t seat) {
  const auto* bytes = static_cast<const std::byte*>(s.checkpoint[seat].data);
  const auto shape = s.checkpoint.shape;
  return {bytes, bytes + shape[1] * shape[2] * shape[3] * size_of(s.checkpoint.dtype)};
}

inline void no_decay(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  const auto [tokens, Hv, G] = args.g.shape;
  const std::vector<float> zeros(tokens * Hv * G);
  GdnVerifyArgs changed = args;
  changed.g = dense<3>(const_cast<float*>(zeros.data()), DType::f32, args.g.shape);
  call(changed, stream, prefill);
}

// The records lose their decay while the call replays them.
inline void no_decay_in_replay(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  const View<4>& g = args.state.record_g;
  std::vector<std::pair<float*, float>> saved;
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    for (int64_t p = args.rows.folded[b]; p < args.rows.first[b]; p++)
      for (int64_t j = 0; j < g.shape[1]; j++) {
        float* slot = gate_record(g, seat, j, p);
        saved.push_back({slot, *slot}), *slot = 0;
      }
  });
  call(args, stream, prefill);
  for (auto [slot, value] : saved)
    if (*slot == 0) *slot = value;
}

inline void checkpoint_not_rounded_in_passing(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  GdnVerifyArgs changed = args;
  changed.grain = 0;
  call(changed, stream, prefill);
}

inline void seats_of_two_rows_swapped(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  std::vector<int32_t> seat(args.rows.seat, args.rows.seat + args.rows.count);
  if (seat.size() >= 2 && seat[0] >= 0 && seat[1] >= 0) std::swap(seat[0], seat[1]);
  GdnVerifyArgs changed = args;
  changed.rows.seat = seat.data();
  call(changed, stream, prefill);
}

inline void no_seat_means_seat_0(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  const size_t count = args.rows.count;
  std::vector<int32_t> seat(args.rows.seat, args.rows.seat + count);
  std::vector<int64_t> first(args.rows.first, args.rows.first + count);
  std::vector<int64_t> folded(args.rows.folded, args.rows.folded + count);
  std::vector<int64_t> fold_to(args.rows.fold_to, args.rows.fold_to + count);
  for (size_t b = 0; b < count; b++)
    if (seat[b] < 0) seat[b] = 0, first[b] = folded[b] = fold_to[b] = 0;
  GdnVerifyArgs changed = args;
  changed.rows.seat = seat.data(), changed.rows.first = first.data();
  changed.rows.folded = folded.data(), changed.rows.fold_to = fold_to.data();
  call(changed, stream, prefill);
}

// Causality by multiplying with zero.
inline void later_tokens_times_zero(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  call(args, stream, prefill);
  each_seat(args.rows, [&](int32_t b, int32_t) {
    for (int32_t t = args.rows.start[b]; t + 1 < args.rows.start[b + 1]; t++)
      for (int64_t i = 0; i < args.out.shape[2]; i++) *args.out.f32(t, 0, i) += 0.0f * *args.v.f32(t + 1, 0, i);
  });
}

// The window computes with what it got, and only the stored records are rounded.
inline void records_rounded_late(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  const auto widen = [](const View<4>& from, std::vector<float>& to) {
    const auto [seats, heads, R, width] = from.shape;
    for (int64_t seat = 0; seat < seats; seat++)
      for (int64_t i = 0; i < heads * R * width; i++) to.push_back(load_as_float(from[seat].data, from.dtype, i));
    return dense<4>(to.data(), DType::f32, from.shape);
  };
  const auto narrow = [](const std::vector<float>& from, const View<4>& to) {
    const int64_t block = static_cast<int64_t>(from.size()) / to.shape[0];
    for (int64_t i = 0; i < static_cast<int64_t>(from.size()); i++)
      if (!std::isnan(from[i])) store_from_float(to[i / block].data, to.dtype, i % block, from[i]);
  };
  std::vector<float> k, v;
  GdnVerifyArgs changed = args;
  changed.state.record_k = widen(args.state.record_k, k), changed.state.record_v = widen(args.state.record_v, v);
  call(changed, stream, prefill);
  narrow(k, args.state.record_k), narrow(v, args.state.record_v);
}

inline void last_bit_depends_on_the_batch(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  call(args, stream, prefill);
  if (args.rows.count < 3 || args.rows.length(1) == 0 || args.rows.seat[1] < 0) return;
  float* out = args.out.f32(args.rows.start[1], 0, 0);
  *out = std::nextafter(*out, 2.0f);
}

inline void padding_left_as_it_was(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  call(args, stream, prefill);
  for (int32_t b = 0; b < args.rows.count; b++)
    for (int32_t t = args.rows.start[b]; t < args.rows.start[b + 1]; t++)
      if (args.rows.seat[b] < 0) *args.out.f32(t, 0, 0) = std::numeric_limits<float>::quiet_NaN();
}

// One width out of all: the fifth record of five is not stored.
inline void width_5_forgets_its_last_record(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  call(args, stream, prefill);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    if (args.rows.length(b) == 5 && args.rows.fold_to[b] <= args.rows.first[b] + 4)
      *gate_record(args.state.record_beta, seat, 0, args.rows.first[b] + 4) = 0;
  });
}

// The checkpoint stays where it was, and the cursor will move.
inline void cursor_moves_without_fold(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  GdnVerifyArgs changed = args;
  if (!prefill) changed.rows.fold_to = args.rows.folded;
  call(changed, stream, prefill);
}

// The replay starts one record early, with the last one that is already in the checkpoint.
inline void one_record_too_many(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  std::vector<std::vector<std::byte>> saved(args.rows.count);
  std::vector<int64_t> before(args.rows.folded, args.rows.folded + args.rows.count);
  std::vector<int32_t> seats(args.rows.count, -1);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    if (args.rows.folded[b] == 0 || args.rows.length(b) == 0) return;
    seats[b] = seat, before[b]--, saved[b] = checkpoint_of(args.state, seat);
  });
  GdnFoldArgs again{.rows = args.rows, .state = args.state, .grain = 0, .norm = args.norm};
  again.rows.seat = seats.data(), again.rows.folded = before.data(), again.rows.fold_to = args.rows.folded;
  base().gdn_fold(again, stream);
  call(args, stream, prefill);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    if (args.rows.fold_to[b] == args.rows.folded[b])
      std::ranges::copy(saved[b], static_cast<std::byte*>(args.state.checkpoint[seat].data));
  });
}

inline void writes_one_record_past_the_window(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  call(args, stream, prefill);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    *gate_record(args.state.record_beta, seat, 0, args.rows.first[b] + args.rows.length(b)) = 0.5f;
  });
}

inline void writes_a_foreign_seat(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  call(args, stream, prefill);
  if (args.rows.count == 0 || args.rows.seat[0] < 0) return;
  const int64_t seat = (args.rows.seat[0] + 1) % args.state.record_g.shape[0];
  if (std::find(args.rows.seat, args.rows.seat + args.rows.count, seat) == args.rows.seat + args.rows.count)
    *args.state.record_g.f32(seat, 0, 0) = -1;
}

}  // namespace deltaring::replay::mutant
