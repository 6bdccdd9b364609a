// Copies, exports and imports of seats.
#include <vector>

#include "capi/call.h"
#include "capi/state.h"
#include "state/seat_export.h"

namespace {

using namespace deltaring;
using capi::guarded, capi::Tensors;

// The tensors of a copy, which its arguments point to.
struct Copy {
  std::vector<SeatTensor> tensors;
  SeatCopyArgs args;
};

Copy copy_of(const deltaring_seat_copy_args& c, const Tensors& in) {
  Copy copy;
  check(c.count >= 0, "{}: count is {}, want >= 0", in.op(), c.count);
  check(c.count == 0 || c.tensors, "{}: {} tensors are null", in.op(), c.count);
  for (int32_t i = 0; i < c.count; i++)
    copy.tensors.push_back(in.seats(fmt::format("tensors[{}] [seats, ...]", i).c_str(), c.tensors[i]));
  const int32_t pairs = in.count("from [pairs]", c.from);
  copy.args = {.tensors = copy.tensors,
               .count = pairs,
               .from = in.int32s("from [pairs]", c.from, pairs),
               .to = in.int32s("to [pairs]", c.to, pairs)};
  return copy;
}

// The layers of a seat, which the description points to.
struct Lent {
  std::vector<SeatLayer> layers;
  LentSeat seat;
};

Lent lent_of(const deltaring_seat& c, const Tensors& in) {
  Lent lent;
  check(c.count >= 1 && c.layers, "{}: {} layers, want at least 1", in.op(), c.layers ? c.count : 0);
  for (int32_t i = 0; i < c.count; i++) {
    SeatLayer& layer = lent.layers.emplace_back(SeatLayer{.state = capi::state_of(c.layers[i], in), .conv = {}});
    if (!c.conv) continue;
    layer.conv = in.view<3>("conv [seats, Rc, C]", c.conv[i]);
    check(layer.conv.data, "{}: conv [seats, Rc, C] is null", in.op());
  }
  lent.seat = {.layers = lent.layers, .seat = c.seat, .taps = c.taps, .grain = c.grain};
  return lent;
}

FileMemory file_of(const DLTensor* file, const Tensors& in) {
  bool on_host = false;
  const std::span<std::byte> bytes = in.bytes("file [bytes]", file, on_host);
  return {.data = bytes.data(), .size = static_cast<int64_t>(bytes.size()), .on_device = !on_host};
}

// body(the seat, its tensors' reader, the stream) where all are given and the backend can.
template <class Body>
int with_seat(const char* op, const deltaring_seat* seat, deltaring_stream* stream, const Body& body) noexcept {
  return guarded([&] {
    check(seat, "{}: seat is null", op);
    check(stream, "{}: stream is null; deltaring_stream_create makes one", op);
    if (!stream->ops->seat_pack || !stream->ops->seat_unpack)
      fail(ErrorKind::unsupported, "{}: the {} backend cannot; cpu works", op, stream->ops->name);
    const Tensors in(op, stream->device);
    const Lent lent = lent_of(*seat, in);
    const std::lock_guard lock(stream->busy);
    body(lent.seat, in);
  });
}

}  // namespace

int deltaring_seat_copy(const deltaring_seat_copy_args* args, deltaring_stream* stream) {
  return guarded([&] {
    check(args, "seat_copy: args is null");
    check(stream, "seat_copy: stream is null; deltaring_stream_create makes one");
    if (!stream->ops->seat_copy) fail(ErrorKind::unsupported, "seat_copy: the {} backend cannot", stream->ops->name);
    const Copy copy = copy_of(*args, Tensors("seat_copy", stream->device));
    const std::lock_guard lock(stream->busy);
    stream->ops->seat_copy(copy.args, *stream->stream);
  });
}

int deltaring_seat_export_bytes(const deltaring_seat* seat, int64_t folded, int64_t pos, deltaring_stream* stream,
                                int64_t* bytes) {
  return with_seat("seat_export", seat, stream, [&](const LentSeat& lent, const Tensors&) {
    check(bytes, "seat_export: bytes is null, want where to put them");
    *bytes = export_bytes(lent, {.folded = folded, .pos = pos});
  });
}

int deltaring_seat_export(const deltaring_seat* seat, int64_t folded, int64_t pos, const DLTensor* file,
                          deltaring_stream* stream) {
  return with_seat("seat_export", seat, stream, [&](const LentSeat& lent, const Tensors& in) {
    export_seat(lent, {.folded = folded, .pos = pos}, file_of(file, in), *stream->ops, *stream->stream);
  });
}

int deltaring_seat_import(const deltaring_seat* seat, int64_t T, const DLTensor* file, deltaring_stream* stream,
                          int64_t* folded, int64_t* pos) {
  return with_seat("seat_import", seat, stream, [&](const LentSeat& lent, const Tensors& in) {
    check(folded && pos, "seat_import: folded or pos is null, want where to put the cursor");
    const Cursor cursor = import_seat(lent, file_of(file, in), T, *stream->ops, *stream->stream);
    *folded = cursor.folded, *pos = cursor.pos;
  });
}
