#include <cstring>

#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"

namespace deltaring::cpu {

namespace {

// A layer a task: all of its pieces.
template <class Move>
void each_piece(const SeatPackArgs& a, Stream& stream, const Move& move) {
  pool_of(stream).parallel_for(static_cast<int64_t>(a.layers.size()), [&](int64_t i) {
    const SeatLayer& layer = a.layers[static_cast<size_t>(i)];
    const LiveSeat live = live_seat(layer, a.cursor, a.taps);
    std::byte* parts[kSeatParts];
    for (int part = 0; part < kSeatParts; part++)
      parts[part] = part_of(layer, static_cast<SeatPart>(part)).seat(a.seat);
    for (int64_t j = 0; j < live.pieces(); j++) {
      const SeatPiece piece = live.piece(j);
      if (piece.bytes == 0) continue;
      move(parts[static_cast<int>(piece.part)] + piece.inside, a.bytes + i * live.bytes() + piece.at,
           static_cast<size_t>(piece.bytes));
    }
  });
}

}  // namespace

// Memory traffic of a pair: a seat's bytes in and out.
void seat_copy(const SeatCopyArgs& a, Stream& stream) {
  check(a);
  const auto tensors = static_cast<int64_t>(a.tensors.size());
  pool_of(stream).parallel_for(a.count * tensors, [&](int64_t task) {
    const SeatTensor& tensor = a.tensors[static_cast<size_t>(task % tensors)];
    const int32_t from = a.from[task / tensors], to = a.to[task / tensors];
    if (from < 0 || to < 0 || from == to || tensor.bytes == 0) return;
    std::memcpy(tensor.seat(to), tensor.seat(from), static_cast<size_t>(tensor.bytes));
  });
}

// Memory traffic: the live bytes once in and once out.
void seat_pack(const SeatPackArgs& args, Stream& stream) {
  check("seat_pack", args);
  each_piece(args, stream,
             [](std::byte* pools, std::byte* packed, size_t bytes) { std::memcpy(packed, pools, bytes); });
}

void seat_unpack(const SeatPackArgs& args, Stream& stream) {
  check("seat_unpack", args);
  each_piece(args, stream,
             [](std::byte* pools, std::byte* packed, size_t bytes) { std::memcpy(pools, packed, bytes); });
}

}  // namespace deltaring::cpu
