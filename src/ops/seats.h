// Seats as opaque bytes: copied from one to another, and packed into one run of bytes for an export, over any number of
// layers and tensors by one call. Within a seat a tensor is dense, so that nothing of it is known but its bytes.
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>

#include "ops/cursor.h"
#include "ops/gdn.h"

namespace deltaring {

// One tensor of any dtype and rank whose first dimension is the seat. Seats do not overlap.
struct SeatTensor {
  void* data = nullptr;
  int64_t seats = 0;
  int64_t pitch = 0;  // bytes from one seat to the next, of either sign
  int64_t bytes = 0;  // of a seat

  std::byte* seat(int64_t i) const { return static_cast<std::byte*>(data) + i * pitch; }
};

template <int N>
SeatTensor seat_tensor(const View<N>& view) {
  const auto size = static_cast<int64_t>(size_of(view.dtype));
  SeatTensor tensor{.data = view.data, .seats = view.shape[0], .pitch = view.stride[0] * size, .bytes = size};
  for (int d = 1; d < N; d++) tensor.bytes *= view.shape[d];
  return tensor;
}

// For each pair i seat to[i] becomes seat from[i] in every tensor. A pair with a -1 is left out, and one of a seat with
// itself changes nothing. No seat is written by two pairs, and none that is written is read by another. Where the
// backend does not compute on the host, pairs with impossible seats are left out.
struct SeatCopyArgs {
  std::span<const SeatTensor> tensors;  // of as many seats; on the host, and read before the call returns
  int32_t count = 0;                    // pairs
  const int32_t* from = nullptr;        // [count]
  const int32_t* to = nullptr;          // [count]
};

// One layer of the pools as exports see it.
struct SeatLayer {
  GdnState state;
  View<3> conv;  // [seats, Rc, C] f32, bf16 or f16; null: no convolution
};

// The parts of a seat in a layer, in the order of SeatLayer's fields.
enum class SeatPart : uint8_t { checkpoint, record_k, record_v, record_g, record_beta, conv };
constexpr int kSeatParts = 6;

// A run of live bytes: where it lies in its part of the seat, and where in the layer's share of an export.
struct SeatPiece {
  SeatPart part;
  int64_t inside, at, bytes;
};

// The live bytes of a seat in one layer and their order in an export: the checkpoint; the records [folded, pos), each
// as k of every key head, then v, g and beta of every value head; the conv inputs [max(0, folded - (taps-1)), pos),
// since a rewind may go back to `folded`. Plain numbers, so that every backend finds a piece by its index.
struct LiveSeat {
  int64_t Hk, Hv, R, Rc, taps;
  int64_t checkpoint, key, value, gate, conv;  // bytes: of all heads; of a head's record of k, v, g; of a conv row
  Cursor cursor;
  static constexpr int64_t kBeta = 4;

  constexpr int64_t records() const { return cursor.pos - cursor.folded; }
  constexpr int64_t record() const { return Hk * key + Hv * (value + gate + kBeta); }
  constexpr int64_t record_pieces() const { return Hk + 3 * Hv; }
  constexpr int64_t first_conv() const {
    return std::min(cursor.pos, std::max(int64_t{0}, cursor.folded - (taps - 1)));
  }
  constexpr int64_t conv_rows() const { return conv > 0 ? cursor.pos - first_conv() : 0; }
  constexpr int64_t bytes() const { return checkpoint + records() * record() + conv_rows() * conv; }
  constexpr int64_t pieces() const { return 1 + records() * record_pieces() + conv_rows(); }

  constexpr SeatPiece piece(int64_t i) const {
    if (i == 0) return {SeatPart::checkpoint, 0, 0, checkpoint};
    const int64_t r = (i - 1) / record_pieces(), h = (i - 1) % record_pieces();
    if (r >= records()) {
      const int64_t row = i - 1 - records() * record_pieces(), slot = (first_conv() + row) % Rc;
      return {SeatPart::conv, slot * conv, checkpoint + records() * record() + row * conv, conv};
    }
    const int64_t slot = (cursor.folded + r) % R, at = checkpoint + r * record();
    if (h < Hk) return {SeatPart::record_k, (h * R + slot) * key, at + h * key, key};
    const int64_t v = (h - Hk) / 3, row = v * R + slot, value_at = at + Hk * key + v * (value + gate + kBeta);
    if ((h - Hk) % 3 == 0) return {SeatPart::record_v, row * value, value_at, value};
    if ((h - Hk) % 3 == 1) return {SeatPart::record_g, row * gate, value_at + value, gate};
    return {SeatPart::record_beta, row * kBeta, value_at + value + gate, kBeta};
  }
};

// seat_pack: the live bytes of a seat in all layers, one layer behind the other, into `bytes`. seat_unpack: back.
struct SeatPackArgs {
  std::span<const SeatLayer> layers;  // of the same shapes and dtypes; on the host, read before the call returns
  int32_t seat = 0;
  Cursor cursor;     // folded <= pos; records fit the ring, conv inputs theirs
  int64_t taps = 1;  // of the convolution
  std::byte* bytes;  // where the backend computes
  int64_t size = 0;  // layers x live_seat(...).bytes()
};

LiveSeat live_seat(const SeatLayer& layer, Cursor cursor, int64_t taps);
SeatTensor part_of(const SeatLayer& layer, SeatPart part);

// Throw Error(invalid_argument) naming the argument; check_tensors looks at nothing behind a pointer.
void check_tensors(const SeatCopyArgs& args);
int64_t checked_size(const char* op, const SeatPackArgs& args);  // what size must be; looks at all but size and bytes
void check(const SeatCopyArgs& args);
void check(const char* op, const SeatPackArgs& args);

}  // namespace deltaring
