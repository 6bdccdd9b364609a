// Exports of seats whose pools somebody else holds, wherever a backend computes: an engine's tensors on a GPU.
#pragma once
#include <span>

#include "ops/table.h"

namespace deltaring {

// A seat and what its file says of it beside shapes and dtypes.
struct LentSeat {
  std::span<const SeatLayer> layers;  // as in SeatPackArgs, at least one
  int32_t seat = 0;
  int64_t taps = 1;   // of the convolution
  int64_t grain = 0;  // F, or 0 off the grid
};

// Memory for a file: the host's, or, with a backend that has its own, that.
struct FileMemory {
  std::byte* data = nullptr;
  int64_t size = 0;
  bool on_device = false;
};

// What an export at that cursor takes.
int64_t export_bytes(const LentSeat& lent, Cursor cursor);

// A file as StatePool::export_seat writes it, without attention layers and side state. Behind everything launched on
// the stream, and done on return; not during a capture. A file in the host's memory takes as much of the device's for
// the time of the call. Throws Error(invalid_argument) for seats, cursors and sizes that cannot be.
void export_seat(const LentSeat& lent, Cursor cursor, FileMemory file, const OpTable& ops, Stream& stream);

// The way back; returns the cursor of the file. T: tokens of the widest window that is to follow. Throws as
// StatePool::import_seat, and then nothing has changed.
Cursor import_seat(const LentSeat& lent, FileMemory file, int64_t T, const OpTable& ops, Stream& stream);

}  // namespace deltaring
