// Seats of a StatePool on their way out and into another.
#include <algorithm>

#include "base/error.h"
#include "state/pool.h"
#include "state/seat_file.h"

namespace deltaring {

namespace {

SeatHeader header_of(const StatePool& pool, Cursor cursor, std::span<SideState* const> sides) {
  const StateShape& s = pool.shape();
  const StateOptions& o = pool.options();
  SeatHeader header{.gdn_layers = s.gdn_layers,
                    .Hk = s.Hk,
                    .Hv = s.Hv,
                    .K = s.K,
                    .V = s.V,
                    .G = s.G,
                    .conv_channels = s.conv_channels,
                    .taps = s.taps,
                    .kv_layers = s.kv_layers,
                    .Hkv = s.Hkv,
                    .D = s.D,
                    .draft_layers = s.draft_layers,
                    .draft_Hkv = s.draft_Hkv,
                    .draft_D = s.draft_D,
                    .checkpoint = static_cast<int64_t>(o.checkpoint),
                    .record = static_cast<int64_t>(o.record),
                    .conv = static_cast<int64_t>(DType::f32),
                    .kv = s.kv_layers + s.draft_layers > 0 ? static_cast<int64_t>(o.kv) : 0,
                    .grain = o.rollback == StateRollback::replay ? pool.grain() : 0,
                    .folded = cursor.folded,
                    .pos = cursor.pos,
                    .sides = static_cast<int64_t>(sides.size()),
                    .side_bytes = 0};
  for (SideState* side : sides) header.side_bytes += static_cast<int64_t>(side->bytes(0).size());
  return header;
}

}  // namespace

// The live bytes of a seat in one order: what can still be read when its cursor is `c`.
template <class Visit>
void StatePool::visit_live(int32_t seat, Cursor c, const Visit& visit) {
  for (int64_t i = 0; i < shape_.gdn_layers; i++) {
    const SeatLayer layer{.state = gdn(i), .conv = conv_ring(i)};
    const LiveSeat live = live_seat(layer, c, shape_.taps);
    for (int64_t j = 0; j < live.pieces(); j++) {
      const SeatPiece piece = live.piece(j);
      visit(std::span(part_of(layer, piece.part).seat(seat) + piece.inside, static_cast<size_t>(piece.bytes)));
    }
  }
  const auto kv_row = [&](const View<1>& row) {
    visit(std::span(static_cast<std::byte*>(row.data), static_cast<size_t>(row.shape[0]) * size_of(row.dtype)));
  };
  for (const View<6>& kv : {kv_, draft_kv_}) {
    for (int64_t layer = 0; layer < kv.shape[0]; layer++) {
      for (int64_t first = 0; first < c.pos; first += options_.page_rows) {
        const int32_t page = pages_of(seat)[first / options_.page_rows];
        const int64_t count = std::min(options_.page_rows, c.pos - first);
        for (int64_t row = 0; row < count; row++) {
          for (int64_t h = 0; h < kv.shape[3]; h++)
            kv_row(kv[layer][0][page][h][row]), kv_row(kv[layer][1][page][h][row]);
        }
      }
    }
  }
  for (SideState* side : sides_) visit(side->bytes(seat));
}

int64_t StatePool::count_live(int32_t seat, Cursor cursor) {
  size_t live = 0;
  visit_live(seat, cursor, [&](std::span<std::byte> piece) { live += piece.size(); });
  return static_cast<int64_t>(live);
}

std::vector<std::byte> StatePool::export_seat(int32_t seat) {
  const Cursor cursor = this->cursor(seat);
  std::vector<std::byte> file(static_cast<size_t>(seat_file_bytes(count_live(seat, cursor))));
  auto at = live_bytes(std::span(file)).begin();
  visit_live(seat, cursor, [&](std::span<std::byte> piece) { at = std::ranges::copy(piece, at).out; });
  seal_seat_file(header_of(*this, cursor, sides_), file);
  return file;
}

int32_t StatePool::import_seat(std::span<const std::byte> file) {
  const SeatHeader header = open_seat_file(file, header_of(*this, {}, sides_));
  const Cursor cursor{.folded = header.folded, .pos = header.pos};
  const int64_t records = cursor.pos - cursor.folded;
  const bool replay = options_.rollback == StateRollback::replay;
  if (!replay && records > 0)
    fail(ErrorKind::unsupported, "exported seat: {} records; --state-rollback snapshot takes states without", records);
  check_rings(header, replay ? options_.ring.T : 0, replay ? options_.ring.R : 0, plan_.conv_rows);
  const int64_t pages = (cursor.pos + options_.page_rows - 1) / options_.page_rows;
  if (free_seats_.empty() || pages > free_pages()) return -1;
  const int32_t seat = take_seat(SeatState::owned, cursor);
  reserve(seat, cursor.pos);
  try {
    check_live_bytes(file, count_live(seat, cursor));
  } catch (...) {
    release_seat(seat);
    throw;
  }
  const std::byte* at = live_bytes(file).data();
  visit_live(seat, cursor, [&at](std::span<std::byte> piece) {
    std::copy_n(at, piece.size(), piece.begin());
    at += piece.size();
  });
  for (SideState* side : sides_) {
    if (side->possible(seat, cursor)) continue;
    release_seat(seat);
    fail(ErrorKind::corrupt, "exported seat: its {} is none of a seat with {} tokens; export it again", side->name(),
         cursor.pos);
  }
  return seat;
}

}  // namespace deltaring
