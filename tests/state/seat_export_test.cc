// Seats of lent tensors to files and back, on every backend: the file is the one that a StatePool writes and reads.
#include "state/seat_export.h"

#include <gtest/gtest.h>

#include "backends/tables.h"
#include "support/lent_pool.h"
#include "support/refusal.h"
#include "support/seat_file.h"

namespace deltaring::test {
namespace {

constexpr Cursor kCursors[] = {{0, 0}, {0, 2}, {8, 8}, {8, 20}, {24, 33}};

class SeatExport : public testing::TestWithParam<const OpTable*> {
 protected:
  const OpTable& ops() const { return *GetParam(); }

  SeatFile exported(const LentPool& pool, int32_t seat, Cursor cursor) {
    SeatFile file(static_cast<size_t>(export_bytes(pool.seat(seat), cursor)));
    export_seat(pool.seat(seat), cursor, in_host(file), ops(), *stream_);
    return file;
  }
  Cursor import(const LentPool& pool, int32_t seat, SeatFile file, int64_t T = 4) {
    return import_seat(pool.seat(seat), in_host(file), T, ops(), *stream_);
  }
  static FileMemory in_host(SeatFile& file) {
    return {.data = file.data(), .size = static_cast<int64_t>(file.size()), .on_device = false};
  }

  std::unique_ptr<Stream> stream_ = GetParam()->make_stream(1);
};
INSTANTIATE_TEST_SUITE_P(, SeatExport, testing::ValuesIn(backends()),
                         [](const auto& info) { return info.param->name; });

TEST_P(SeatExport, AStatePoolTakesTheFileAndWritesTheSame) {
  const LentPool pool(ops(), 4, 16);
  for (const Cursor cursor : kCursors) {
    const SeatFile file = exported(pool, 2, cursor);
    StatePool host(LentPool::shape(), LentPool::options(32));
    const int32_t seat = host.import_seat(file);
    ASSERT_GE(seat, 0);
    EXPECT_EQ(host.cursor(seat), cursor);
    EXPECT_EQ(host.export_seat(seat), file);
  }
  pool.pools.pull();
  EXPECT_EQ(pool.pools.end(), "") << "an export wrote into the pools";
}

// Into another number of seats and another ring; the live bytes arrive, the others stay.
TEST_P(SeatExport, ImportsInto) {
  const LentPool from(ops(), 4, 16);
  for (const int64_t R : {16, 64}) {
    for (const Cursor cursor : kCursors) {
      const LentPool to(ops(), 2, R);
      const SeatFile file = exported(from, 1, cursor), neighbour = exported(to, 0, cursor);
      EXPECT_EQ(import(to, 1, file), cursor);
      EXPECT_EQ(exported(to, 1, cursor), file);
      EXPECT_EQ(exported(to, 0, cursor), neighbour);
    }
  }
}

// A file in the backend's own memory is the same file.
TEST_P(SeatExport, FilesOnTheDevice) {
  const LentPool from(ops(), 3, 16), to(ops(), 3, 16);
  const Cursor cursor{8, 17};
  const SeatFile file = exported(from, 0, cursor);
  const replay::Buffer there(from.device, file.size());
  there.push();
  const FileMemory memory{
      .data = there.device(), .size = static_cast<int64_t>(file.size()), .on_device = ops().memory != nullptr};
  export_seat(from.seat(0), cursor, memory, ops(), *stream_);
  there.pull();
  EXPECT_EQ(there.copy(), file);
  EXPECT_TRUE(there.fences_intact());
  EXPECT_EQ(import_seat(to.seat(2), memory, 4, ops(), *stream_), cursor);
  EXPECT_EQ(exported(to, 2, cursor), file);
}

TEST_P(SeatExport, RefusesAndLeavesThePoolsAlone) {
  const LentPool from(ops(), 3, 16);
  LentPool to(ops(), 3, 16);
  const SeatFile file = exported(from, 0, {8, 20});
  const auto refused = [&](const LentPool& pool, const SeatFile& bad, ErrorKind kind, const char* why, int64_t T = 4) {
    std::string what;
    EXPECT_EQ(refusal([&] { import(pool, 1, bad, T); }, &what), kind) << what;
    EXPECT_NE(what.find(why), std::string::npos) << what;
    pool.pools.pull();
    EXPECT_EQ(pool.pools.end(), "") << why;
  };
  for (size_t at = 0; at < file.size(); at += 7) {
    SeatFile bad = file;
    bad[at] ^= std::byte{0x10};
    refused(to, bad, at >= 8 && at < 16 ? ErrorKind::unsupported : ErrorKind::corrupt, "exported seat: ");
    if (HasFailure()) FAIL() << "byte " << at;
  }
  refused(to, SeatFile(file.begin(), file.end() - 8), ErrorKind::corrupt, "length");
  refused(to, SeatFile(3), ErrorKind::corrupt, "cut off");
  refused(to, file, ErrorKind::unsupported, "12 records and a window of 5 exceed the ring of 16", 5);
  refused(to, file, ErrorKind::invalid_argument, "T is 0", 0);
  refused(LentPool(ops(), 3, 16, DType::f32), file, ErrorKind::unsupported, "checkpoint dtype");
  LentPool shorter(ops(), 3, 16);
  shorter.layers.pop_back();
  refused(shorter, file, ErrorKind::unsupported, "GDN layers 2, this pool has 1");
  // A cursor that would need fewer bytes than there are.
  refused(to, with_word(file, find_word(file, 20), 19), ErrorKind::corrupt, "its header asks for");
}

TEST_P(SeatExport, ExportsRefuse) {
  const LentPool pool(ops(), 3, 16);
  SeatFile file(static_cast<size_t>(export_bytes(pool.seat(0), {8, 9})));
  const SeatFile before = file;
  const auto refused = [&](const LentSeat& seat, Cursor cursor, const char* why) {
    std::string what;
    const auto kind = refusal([&] { export_seat(seat, cursor, in_host(file), ops(), *stream_); }, &what);
    EXPECT_EQ(kind, ErrorKind::invalid_argument) << what;
    EXPECT_NE(what.find(why), std::string::npos) << what;
    EXPECT_EQ(file, before);
  };
  refused(pool.seat(3), {8, 9}, "seat is 3, want [0, 3)");
  refused(pool.seat(0), {8, 10}, "the file has");
  refused(pool.seat(0), {9, 8}, "folded 9 is not in [0, pos = 8]");
  refused(pool.seat(0), {8, 25}, "17 records in a ring of 16");
  LentSeat seat = pool.seat(0);
  seat.grain = 5;
  refused(seat, {8, 9}, "grain is 5");
  seat = pool.seat(0), seat.layers = {};
  refused(seat, {8, 9}, "no layers");
}

}  // namespace
}  // namespace deltaring::test
