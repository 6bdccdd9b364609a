#include "ops/seats.h"

#include <algorithm>
#include <vector>

#include "ops/check_gdn.h"

namespace deltaring {

namespace {

constexpr int64_t kMostTaps = 1024;

// A seat is one run of bytes.
template <int N>
void check_dense_seats(const char* op, const char* name, const View<N>& view) {
  if (!has_elements(view)) return;
  int64_t step = 1;
  for (int d = N - 1; d > 0; d--) {
    if (view.shape[d] != 1 && view.stride[d] != step)
      refuse(op, name, d, "stride ", view.stride[d], std::to_string(step) + ": a seat is one run of bytes");
    step *= view.shape[d];
  }
}

template <int N>
void check_alike(const char* op, const char* name, size_t layer, const View<N>& view, const View<N>& first) {
  check(view.dtype == first.dtype && view.shape == first.shape,
        "{}: {} of layer {} has another shape or dtype than that of layer 0; an export of each works", op, name, layer);
}

void check_layer(const char* op, size_t i, const SeatLayer& layer, const SeatLayer& first) {
  const GdnState &s = layer.state, &like = first.state;
  const auto tensor = [&](const char* name, const auto& view, const auto& first_view) {
    check_alike(op, name, i, view, first_view);
    check_dense_seats(op, name, view);
  };
  check_state(op, s);
  tensor("checkpoint [seats, Hv, V, K]", s.checkpoint, like.checkpoint);
  tensor("record_k [seats, Hk, R, K]", s.record_k, like.record_k);
  tensor("record_v [seats, Hv, R, V]", s.record_v, like.record_v);
  tensor("record_g [seats, Hv, R, G]", s.record_g, like.record_g);
  tensor("record_beta [seats, Hv, R]", s.record_beta, like.record_beta);
  check(bool(layer.conv) == bool(first.conv), "{}: conv is given for some layers only, layer {} is unlike layer 0", op,
        i);
  if (!layer.conv) return;
  const char* name = "conv [seats, Rc, C]";
  check_output(op, name, layer.conv, layer.conv.dtype,
               {s.checkpoint.shape[0], layer.conv.shape[1], first.conv.shape[2]});
  tensor(name, layer.conv, first.conv);
}

}  // namespace

SeatTensor part_of(const SeatLayer& layer, SeatPart part) {
  const GdnState& s = layer.state;
  switch (part) {
    case SeatPart::checkpoint:
      return seat_tensor(s.checkpoint);
    case SeatPart::record_k:
      return seat_tensor(s.record_k);
    case SeatPart::record_v:
      return seat_tensor(s.record_v);
    case SeatPart::record_g:
      return seat_tensor(s.record_g);
    case SeatPart::record_beta:
      return seat_tensor(s.record_beta);
    default:
      return seat_tensor(layer.conv);
  }
}

LiveSeat live_seat(const SeatLayer& layer, Cursor cursor, int64_t taps) {
  const GdnState& s = layer.state;
  const auto row = [](const auto& view, int64_t elements) {
    return elements * static_cast<int64_t>(size_of(view.dtype));
  };
  return {.Hk = s.record_k.shape[1],
          .Hv = s.record_v.shape[1],
          .R = s.record_k.shape[2],
          .Rc = layer.conv.shape[1],
          .taps = taps,
          .checkpoint = seat_tensor(s.checkpoint).bytes,
          .key = row(s.record_k, s.record_k.shape[3]),
          .value = row(s.record_v, s.record_v.shape[3]),
          .gate = row(s.record_g, s.record_g.shape[3]),
          .conv = layer.conv ? row(layer.conv, layer.conv.shape[2]) : 0,
          .cursor = cursor};
}

void check_tensors(const SeatCopyArgs& a) {
  const char* op = "seat_copy";
  check(a.count >= 0, "{}: count is {}, want >= 0", op, a.count);
  check(a.count == 0 || (a.from && a.to), "{}: {} pairs need from and to", op, a.count);
  for (size_t i = 0; i < a.tensors.size(); i++) {
    const SeatTensor& t = a.tensors[i];
    check(t.seats == a.tensors[0].seats && t.seats >= 0, "{}: tensor {} has {} seats, want {}", op, i, t.seats,
          std::max(int64_t{0}, a.tensors[0].seats));
    check(t.bytes >= 0 && (t.seats <= 1 || std::abs(t.pitch) >= t.bytes),
          "{}: tensor {} has {} bytes from seat to seat, want at least the {} of a seat", op, i, t.pitch, t.bytes);
    check(t.data || t.bytes * t.seats == 0, "{}: tensor {} is null", op, i);
  }
}

void check(const SeatCopyArgs& a) {
  check_tensors(a);
  const int64_t seats = a.tensors.empty() ? 0 : a.tensors[0].seats;
  std::vector<int32_t> read, written;
  for (int32_t i = 0; i < a.count && !a.tensors.empty(); i++) {
    for (const auto& [name, seat] : {std::pair{"from", a.from[i]}, std::pair{"to", a.to[i]}})
      check(seat >= -1 && seat < seats, "seat_copy: {}[{}] is {}, want -1 or [0, {})", name, i, seat, seats);
    if (a.from[i] < 0 || a.to[i] < 0) continue;
    written.push_back(a.to[i]);
    if (a.from[i] != a.to[i]) read.push_back(a.from[i]);
  }
  std::ranges::sort(read), std::ranges::sort(written);
  const auto twice = std::ranges::adjacent_find(written);
  check(twice == written.end(), "seat_copy: seat {} is written by two pairs", twice == written.end() ? -1 : *twice);
  for (const int32_t seat : written) {
    check(!std::ranges::binary_search(read, seat), "seat_copy: seat {} is written by one pair and read by another",
          seat);
  }
}

int64_t checked_size(const char* op, const SeatPackArgs& a) {
  if (a.layers.empty()) return 0;
  const SeatLayer& first = a.layers[0];
  for (size_t i = 0; i < a.layers.size(); i++) check_layer(op, i, a.layers[i], first);
  const int64_t seats = first.state.checkpoint.shape[0], R = first.state.record_k.shape[2], pos = a.cursor.pos;
  check(a.seat >= 0 && a.seat < seats, "{}: seat is {}, want [0, {})", op, a.seat, seats);
  check(0 <= a.cursor.folded && a.cursor.folded <= pos && pos <= kLastPosition,
        "{}: folded {} is not in [0, pos = {}], or that is beyond 2^62", op, a.cursor.folded, pos);
  check(pos - a.cursor.folded <= R, "{}: {} records in a ring of {}", op, pos - a.cursor.folded, R);
  if (first.conv) check(a.taps >= 1 && a.taps <= kMostTaps, "{}: taps is {}, want [1, {}]", op, a.taps, kMostTaps);
  const LiveSeat live = live_seat(first, a.cursor, a.taps);
  check(live.conv_rows() == 0 || live.conv_rows() <= live.Rc, "{}: {} conv inputs behind {} in a ring of {}", op,
        live.conv_rows(), live.first_conv(), live.Rc);
  return live.bytes() * static_cast<int64_t>(a.layers.size());
}

void check(const char* op, const SeatPackArgs& a) {
  const int64_t bytes = checked_size(op, a);
  check(a.size == bytes, "{}: size is {}, want {}", op, a.size, bytes);
  check(a.bytes || bytes == 0, "{}: bytes is null", op);
}

}  // namespace deltaring
