#include "state/seat_file.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace deltaring {

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr uint64_t kMagic = 0x5441455354454c44;  // "DLETSEAT"
constexpr int64_t kVersion = 2;

// What a state must share with the pools that take it, by name.
struct Field {
  const char* name;
  int64_t SeatHeader::*value;
};
constexpr Field kShape[] = {{"GDN layers", &SeatHeader::gdn_layers},
                            {"Hk", &SeatHeader::Hk},
                            {"Hv", &SeatHeader::Hv},
                            {"K", &SeatHeader::K},
                            {"V", &SeatHeader::V},
                            {"gate channels G", &SeatHeader::G},
                            {"conv channels", &SeatHeader::conv_channels},
                            {"conv taps", &SeatHeader::taps},
                            {"attention layers", &SeatHeader::kv_layers},
                            {"Hkv", &SeatHeader::Hkv},
                            {"D", &SeatHeader::D},
                            {"layers of a drafter", &SeatHeader::draft_layers},
                            {"Hkv of a drafter", &SeatHeader::draft_Hkv},
                            {"D of a drafter", &SeatHeader::draft_D},
                            {"checkpoint dtype", &SeatHeader::checkpoint},
                            {"record dtype", &SeatHeader::record},
                            {"conv dtype", &SeatHeader::conv},
                            {"KV dtype", &SeatHeader::kv},
                            {"fold grain", &SeatHeader::grain},
                            {"pieces of side state", &SeatHeader::sides},
                            {"bytes of side state", &SeatHeader::side_bytes}};

void damaged(bool ok, const char* what) {
  if (!ok) fail(ErrorKind::corrupt, "exported seat: {}", what);
}

}  // namespace

int64_t seat_file_bytes(int64_t live) { return static_cast<int64_t>(sizeof(SeatHeader) + sizeof(XXH64_hash_t)) + live; }

std::span<std::byte> live_bytes(std::span<std::byte> file) {
  return file.subspan(sizeof(SeatHeader), file.size() - static_cast<size_t>(seat_file_bytes(0)));
}
std::span<const std::byte> live_bytes(std::span<const std::byte> file) {
  return file.subspan(sizeof(SeatHeader), file.size() - static_cast<size_t>(seat_file_bytes(0)));
}

void seal_seat_file(SeatHeader header, std::span<std::byte> file) {
  header.magic = kMagic, header.version = kVersion, header.bytes = static_cast<int64_t>(file.size());
  const size_t body = file.size() - sizeof(XXH64_hash_t);
  std::memcpy(file.data(), &header, sizeof header);
  const XXH64_hash_t sum = XXH3_64bits(file.data(), body);
  std::memcpy(file.data() + body, &sum, sizeof sum);
}

SeatHeader open_seat_file(std::span<const std::byte> file, const SeatHeader& own) {
  SeatHeader header;
  damaged(static_cast<int64_t>(file.size()) >= seat_file_bytes(0), "cut off before the end of its header");
  std::memcpy(&header, file.data(), sizeof header);
  damaged(header.magic == kMagic, "not one: it does not start with the magic number");
  if (header.version != kVersion)
    fail(ErrorKind::unsupported, "exported seat: version {}, this build reads {}", header.version, kVersion);
  damaged(header.bytes == static_cast<int64_t>(file.size()), "its length is not the one it states");
  XXH64_hash_t sum;
  const size_t body = file.size() - sizeof sum;
  std::memcpy(&sum, file.data() + body, sizeof sum);
  damaged(sum == XXH3_64bits(file.data(), body), "the checksum does not match");
  for (const Field& field : kShape) {
    if (header.*field.value != own.*field.value)
      fail(ErrorKind::unsupported, "exported seat: {} {}, this pool has {}", field.name, header.*field.value,
           own.*field.value);
  }
  damaged(0 <= header.folded && header.folded <= header.pos && header.pos < int64_t{1} << 48,
          "its cursor is impossible");
  damaged(header.grain == 0 || header.folded % header.grain == 0, "its checkpoint is off its grid");
  damaged(std::ranges::all_of(header.reserved, [](int64_t x) { return x == 0; }), "a field that nothing uses is not 0");
  return header;
}

void check_rings(const SeatHeader& header, int64_t T, int64_t R, int64_t Rc) {
  const int64_t records = header.pos - header.folded;
  if (T > R - records)
    fail(ErrorKind::unsupported, "exported seat: {} records and a window of {} exceed the ring of {}; {}", records, T,
         R, "--linear-replayssm-cache-len");
  if (std::min(header.pos, records + header.taps - 1) > Rc)
    fail(ErrorKind::unsupported, "exported seat: {} records need more than the {} rows of the conv ring", records, Rc);
}

void check_live_bytes(std::span<const std::byte> file, int64_t live) {
  if (seat_file_bytes(live) != static_cast<int64_t>(file.size()))
    fail(ErrorKind::corrupt, "exported seat: {} bytes, its header asks for {}", file.size(), seat_file_bytes(live));
}

}  // namespace deltaring
