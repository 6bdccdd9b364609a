// An exported seat: a header, the live bytes, a checksum. Whoever holds the pools, the file is the same.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "ops/cursor.h"

namespace deltaring {

// Little-endian. All int64, so that there is no padding, and a multiple of 64 bytes.
struct SeatHeader {
  uint64_t magic = 0;
  int64_t version = 0;
  int64_t bytes = 0;  // of header, live bytes and checksum together
  int64_t gdn_layers, Hk, Hv, K, V, G, conv_channels, taps, kv_layers, Hkv, D;
  int64_t draft_layers, draft_Hkv, draft_D;  // of a drafter with KV of its own, or 0
  int64_t checkpoint, record, conv,
      kv;         // DType; 0 where there are no conv channels, or no attention layers of model and drafter
  int64_t grain;  // F, or 0 off the grid
  int64_t folded, pos;
  int64_t sides, side_bytes;  // pieces of side state, and their sum
  int64_t reserved[6] = {};
};
static_assert(sizeof(SeatHeader) % 64 == 0);

// Bytes of a file with as many live bytes, and where those are.
int64_t seat_file_bytes(int64_t live);
std::span<std::byte> live_bytes(std::span<std::byte> file);
std::span<const std::byte> live_bytes(std::span<const std::byte> file);

// Writes the header, completed, and the checksum of all of it around the live bytes of `file`.
void seal_seat_file(SeatHeader header, std::span<std::byte> file);

// The header of a file that is whole, for pools of which `own` is the header. Throws Error(corrupt) for bytes that are
// damaged, Error(unsupported) for another version, shape, dtype or grid.
SeatHeader open_seat_file(std::span<const std::byte> file, const SeatHeader& own);

// Throws Error(unsupported) when its records and a window of T exceed a ring of R, or its conv inputs one of Rc.
void check_rings(const SeatHeader& header, int64_t T, int64_t R, int64_t Rc);

// Throws Error(corrupt) unless the file has as many live bytes as its header asks for.
void check_live_bytes(std::span<const std::byte> file, int64_t live);

}  // namespace deltaring
