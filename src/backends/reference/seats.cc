#include <cstring>

#include "backends/reference/ops.h"

namespace deltaring::reference {

namespace {

void transfer(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// visit(where a piece lies in the pools, where in the export, its bytes), in the order of the export.
template <class Visit>
void each_piece(const SeatPackArgs& a, const Visit& visit) {
  std::byte* packed = a.bytes;
  for (const SeatLayer& layer : a.layers) {
    const LiveSeat live = live_seat(layer, a.cursor, a.taps);
    for (int64_t i = 0; i < live.pieces(); i++) {
      const SeatPiece piece = live.piece(i);
      visit(part_of(layer, piece.part).seat(a.seat) + piece.inside, packed + piece.at, piece.bytes);
    }
    packed += live.bytes();
  }
}

}  // namespace

void seat_copy(const SeatCopyArgs& a, Stream&) {
  check(a);
  for (int32_t i = 0; i < a.count; i++) {
    if (a.from[i] < 0 || a.to[i] < 0 || a.from[i] == a.to[i]) continue;
    for (const SeatTensor& tensor : a.tensors) transfer(tensor.seat(a.to[i]), tensor.seat(a.from[i]), tensor.bytes);
  }
}

void seat_pack(const SeatPackArgs& args, Stream&) {
  check("seat_pack", args);
  each_piece(args, [](std::byte* pools, std::byte* packed, int64_t bytes) { transfer(packed, pools, bytes); });
}

void seat_unpack(const SeatPackArgs& args, Stream&) {
  check("seat_unpack", args);
  each_piece(args, [](std::byte* pools, std::byte* packed, int64_t bytes) { transfer(pools, packed, bytes); });
}

}  // namespace deltaring::reference
