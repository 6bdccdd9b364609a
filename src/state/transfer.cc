// Seats on their way out of a pool and into another: header, live state, checksum.
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "state/pool.h"

namespace deltaring {

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr uint64_t kMagic = 0x5441455354454c44;  // "DLETSEAT"
constexpr int64_t kVersion = 2;

// All int64, so that there is no padding.
struct Header {
  uint64_t magic = kMagic;
  int64_t version = kVersion;
  int64_t bytes = 0;  // of header, state and checksum together
  int64_t gdn_layers, Hk, Hv, K, V, G, conv_channels, taps, kv_layers, Hkv, D, draft_layers, draft_Hkv, draft_D;
  int64_t checkpoint, record, kv;  // DType
  int64_t grain;                   // F, or 0 off the grid
  int64_t folded, pos;
  int64_t sides, side_bytes;  // pieces of side state, and their sum
};

// What a state must share with the pool that takes it: the fields from gdn_layers to grain, by name.
struct Field {
  const char* name;
  int64_t Header::*value;
};
constexpr Field kShape[] = {{"GDN layers", &Header::gdn_layers},
                            {"Hk", &Header::Hk},
                            {"Hv", &Header::Hv},
                            {"K", &Header::K},
                            {"V", &Header::V},
                            {"gate channels G", &Header::G},
                            {"conv channels", &Header::conv_channels},
                            {"conv taps", &Header::taps},
                            {"attention layers", &Header::kv_layers},
                            {"Hkv", &Header::Hkv},
                            {"D", &Header::D},
                            {"layers of a drafter", &Header::draft_layers},
                            {"Hkv of a drafter", &Header::draft_Hkv},
                            {"D of a drafter", &Header::draft_D},
                            {"checkpoint dtype", &Header::checkpoint},
                            {"record dtype", &Header::record},
                            {"KV dtype", &Header::kv},
                            {"fold grain", &Header::grain},
                            {"pieces of side state", &Header::sides},
                            {"bytes of side state", &Header::side_bytes}};

Header header_of(const StatePool& pool, Cursor cursor, std::span<SideState* const> sides) {
  const StateShape& s = pool.shape();
  const StateOptions& o = pool.options();
  Header header{.gdn_layers = s.gdn_layers,
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
                .kv = static_cast<int64_t>(o.kv),
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
  const auto rows = [&](const auto& view) {  // a dense piece of memory
    int64_t elements = 1;
    for (const int64_t extent : view.shape) elements *= extent;
    visit(std::span(static_cast<std::byte*>(view.data), static_cast<size_t>(elements) * size_of(view.dtype)));
  };
  for (int64_t layer = 0; layer < shape_.gdn_layers; layer++) {
    rows(checkpoint_[layer][seat]);
    for (int64_t p = c.folded; p < c.pos; p++) {
      const int64_t slot = p % options_.ring.R;
      for (int64_t h = 0; h < shape_.Hk; h++) rows(record_k_[layer][seat][h][slot]);
      for (int64_t h = 0; h < shape_.Hv; h++) {
        rows(record_v_[layer][seat][h][slot]), rows(record_g_[layer][seat][h][slot]);
        rows(record_beta_[layer][seat][h].rows(slot, 1));
      }
    }
    // A rewind may go back to `folded`, and the conv then reads taps-1 inputs before it.
    for (int64_t p = std::max<int64_t>(0, c.folded - (shape_.taps - 1)); p < c.pos; p++)
      rows(conv_[layer][seat][p % plan_.conv_rows]);
  }
  for (const View<6>& kv : {kv_, draft_kv_}) {
    for (int64_t layer = 0; layer < kv.shape[0]; layer++) {
      for (int64_t first = 0; first < c.pos; first += options_.page_rows) {
        const int32_t page = pages_of(seat)[first / options_.page_rows];
        const int64_t count = std::min(options_.page_rows, c.pos - first);
        for (int64_t row = 0; row < count; row++) {
          for (int64_t h = 0; h < kv.shape[3]; h++) rows(kv[layer][0][page][h][row]), rows(kv[layer][1][page][h][row]);
        }
      }
    }
  }
  for (SideState* side : sides_) visit(side->bytes(seat));
}

std::vector<std::byte> StatePool::export_seat(int32_t seat) {
  const Cursor cursor = this->cursor(seat);
  Header header = header_of(*this, cursor, sides_);
  size_t size = sizeof(Header) + sizeof(XXH64_hash_t);
  visit_live(seat, cursor, [&](std::span<std::byte> piece) { size += piece.size(); });
  header.bytes = static_cast<int64_t>(size);
  std::vector<std::byte> out(size);
  std::byte* at = out.data();
  const auto put = [&at](const void* data, size_t bytes) {
    if (bytes > 0) std::memcpy(at, data, bytes);
    at += bytes;
  };
  put(&header, sizeof header);
  visit_live(seat, cursor, [&](std::span<std::byte> piece) { put(piece.data(), piece.size()); });
  const XXH64_hash_t sum = XXH3_64bits(out.data(), size - sizeof(XXH64_hash_t));
  put(&sum, sizeof sum);
  return out;
}

void StatePool::check_import(std::span<const std::byte> bytes) const {
  const auto damaged = [](bool ok, const char* what) {
    if (!ok) fail(ErrorKind::corrupt, "exported seat: {}", what);
  };
  Header header;
  damaged(bytes.size() >= sizeof header + sizeof(XXH64_hash_t), "cut off before the end of its header");
  std::memcpy(&header, bytes.data(), sizeof header);
  damaged(header.magic == kMagic, "not one: it does not start with the magic number");
  if (header.version != kVersion)
    fail(ErrorKind::unsupported, "exported seat: version {}, this build reads {}", header.version, kVersion);
  damaged(header.bytes == static_cast<int64_t>(bytes.size()), "its length is not the one it states");
  XXH64_hash_t sum;
  const size_t body = bytes.size() - sizeof sum;
  std::memcpy(&sum, bytes.data() + body, sizeof sum);
  damaged(sum == XXH3_64bits(bytes.data(), body), "the checksum does not match");
  const Header own = header_of(*this, {}, sides_);
  for (const Field& field : kShape) {
    if (header.*field.value != own.*field.value)
      fail(ErrorKind::unsupported, "exported seat: {} {}, this pool has {}", field.name, header.*field.value,
           own.*field.value);
  }
  damaged(0 <= header.folded && header.folded <= header.pos && header.pos < int64_t{1} << 48,
          "its cursor is impossible");
  const int64_t records = header.pos - header.folded;
  if (options_.rollback == StateRollback::snapshot && records > 0)
    fail(ErrorKind::unsupported, "exported seat: {} records; --state-rollback snapshot takes states without", records);
  if (options_.rollback == StateRollback::replay && records + options_.ring.T > options_.ring.R)
    fail(ErrorKind::unsupported, "exported seat: {} records and a window of {} exceed the ring of {}; {}", records,
         options_.ring.T, options_.ring.R, "--linear-replayssm-cache-len");
  if (std::min(header.pos, records + shape_.taps - 1) > plan_.conv_rows)
    fail(ErrorKind::unsupported, "exported seat: {} records need more than the {} rows of the conv ring", records,
         plan_.conv_rows);
}

int32_t StatePool::import_seat(std::span<const std::byte> bytes) {
  check_import(bytes);
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  const Cursor cursor{.folded = header.folded, .pos = header.pos};
  const int64_t pages = (cursor.pos + options_.page_rows - 1) / options_.page_rows;
  if (free_seats_.empty() || pages > free_pages()) return -1;
  const int32_t seat = take_seat(SeatState::owned, cursor);
  reserve(seat, cursor.pos);
  size_t size = sizeof header + sizeof(XXH64_hash_t);
  visit_live(seat, cursor, [&](std::span<std::byte> piece) { size += piece.size(); });
  if (size != bytes.size()) {
    release_seat(seat);
    fail(ErrorKind::corrupt, "exported seat: {} bytes, its header asks for {}", bytes.size(), size);
  }
  const std::byte* at = bytes.data() + sizeof header;
  visit_live(seat, cursor, [&at](std::span<std::byte> piece) {
    std::copy_n(at, piece.size(), piece.begin());
    at += piece.size();
  });
  return seat;
}

}  // namespace deltaring
