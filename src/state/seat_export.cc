#include "state/seat_export.h"

#include <memory>
#include <vector>

#include "base/error.h"
#include "state/seat_file.h"

namespace deltaring {

namespace {

SeatHeader header_of(const LentSeat& lent, Cursor cursor) {
  const SeatLayer& layer = lent.layers[0];
  const GdnState& s = layer.state;
  const auto [seats, Hv, V, K] = s.checkpoint.shape;
  return {.gdn_layers = static_cast<int64_t>(lent.layers.size()),
          .Hk = s.record_k.shape[1],
          .Hv = Hv,
          .K = K,
          .V = V,
          .G = s.record_g.shape[3],
          .conv_channels = layer.conv ? layer.conv.shape[2] : 0,
          .taps = layer.conv ? lent.taps : 0,
          .kv_layers = 0,
          .Hkv = 0,
          .D = 0,
          .checkpoint = static_cast<int64_t>(s.checkpoint.dtype),
          .record = static_cast<int64_t>(s.record_k.dtype),
          .conv = static_cast<int64_t>(layer.conv.dtype),
          .kv = 0,
          .grain = lent.grain,
          .folded = cursor.folded,
          .pos = cursor.pos,
          .sides = 0,
          .side_bytes = 0};
}

void check_layers(const char* op, const LentSeat& lent) {
  check(!lent.layers.empty(), "{}: no layers, want at least 1", op);
  check(lent.grain == 0 || lent.grain == 8 || lent.grain == 16, "{}: grain is {}, want 8, 16 or 0", op, lent.grain);
}

// Checked, all but where the bytes are.
SeatPackArgs pack_args(const char* op, const LentSeat& lent, Cursor cursor, std::byte* bytes) {
  SeatPackArgs args{.layers = lent.layers, .seat = lent.seat, .cursor = cursor, .taps = lent.taps, .bytes = bytes};
  args.size = checked_size(op, args);
  return args;
}

// Live bytes where the backend computes: those of the file if it lies there, else of a passing piece of memory.
struct Live {
  std::unique_ptr<std::byte, void (*)(void*)> owned{nullptr, nullptr};
  std::byte* data;

  Live(const FileMemory& file, const Memory* memory) {
    const std::span<std::byte> own = live_bytes(std::span(file.data, static_cast<size_t>(file.size)));
    data = own.data();
    if (file.on_device || !memory) return;
    owned = {static_cast<std::byte*>(memory->allocate(own.size())), memory->free};
    data = owned.get();
  }
};

}  // namespace

int64_t export_bytes(const LentSeat& lent, Cursor cursor) {
  check_layers("seat_export", lent);
  return seat_file_bytes(pack_args("seat_export", lent, cursor, nullptr).size);
}

void export_seat(const LentSeat& lent, Cursor cursor, FileMemory file, const OpTable& ops, Stream& stream) {
  const int64_t size = export_bytes(lent, cursor);
  check(file.data && file.size == size, "seat_export: the file has {} bytes, want {}", file.data ? file.size : 0, size);
  const Live live(file, ops.memory);
  ops.seat_pack(pack_args("seat_export", lent, cursor, live.data), stream);
  std::vector<std::byte> copy(file.on_device ? static_cast<size_t>(size) : 0);
  const std::span<std::byte> sealed =
      file.on_device ? std::span(copy) : std::span(file.data, static_cast<size_t>(size));
  if (ops.memory) ops.memory->read(live_bytes(sealed).data(), live.data, live_bytes(sealed).size());
  seal_seat_file(header_of(lent, cursor), sealed);
  if (!file.on_device) return;
  const std::span<std::byte> body = live_bytes(sealed);
  const auto front = static_cast<size_t>(body.data() - sealed.data()), back = front + body.size();
  ops.memory->write(file.data, sealed.data(), front);
  ops.memory->write(file.data + back, sealed.data() + back, sealed.size() - back);
}

Cursor import_seat(const LentSeat& lent, FileMemory file, int64_t T, const OpTable& ops, Stream& stream) {
  const char* op = "seat_import";
  check_layers(op, lent);
  check(file.data, "{}: the file is null", op);
  pack_args(op, lent, {}, nullptr);
  check(T >= 1, "{}: T is {}, want the tokens of the widest window, anchor included", op, T);
  std::vector<std::byte> copy(file.on_device ? static_cast<size_t>(file.size) : 0);
  if (file.on_device) ops.memory->read(copy.data(), file.data, copy.size());
  const std::span<const std::byte> whole = file.on_device ? copy : std::span(file.data, static_cast<size_t>(file.size));
  const SeatHeader header = open_seat_file(whole, header_of(lent, {}));
  const Cursor cursor{.folded = header.folded, .pos = header.pos};
  const SeatLayer& layer = lent.layers[0];
  check_rings(header, T, layer.state.record_k.shape[2], layer.conv ? layer.conv.shape[1] : header.pos);
  check_live_bytes(whole, pack_args(op, lent, cursor, nullptr).size);
  const Live live(file, ops.memory);
  if (live.owned) ops.memory->write(live.data, live_bytes(whole).data(), live_bytes(whole).size());
  ops.seat_unpack(pack_args(op, lent, cursor, live.data), stream);
  if (ops.memory) ops.memory->wait(stream);
  return cursor;
}

}  // namespace deltaring
