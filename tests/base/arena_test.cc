#include "base/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace deltaring {
namespace {

constexpr size_t kMost = std::numeric_limits<size_t>::max();

ErrorKind kind_of_failure(size_t bytes, const char* purpose, std::string* text = nullptr) {
  try {
    const Arena arena(bytes, purpose);
  } catch (const Error& e) {
    if (text) *text = e.what();
    return e.kind();
  }
  ADD_FAILURE() << bytes << " bytes were granted";
  return {};
}

TEST(Arena, PiecesAreZeroAlignedAndApart) {
  Arena arena(10000, "test");
  ASSERT_GE(arena.size(), 10000u);
  std::vector<std::pair<std::byte*, size_t>> pieces;
  for (const size_t bytes : {1, 63, 64, 65, 0, 1000, 7, 4096}) {
    auto* piece = static_cast<std::byte*>(arena.take(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece) % Arena::kAlignment, 0u) << bytes;
    EXPECT_TRUE(std::all_of(piece, piece + bytes, [](std::byte b) { return b == std::byte{0}; })) << bytes;
    EXPECT_GE(piece, arena.data());
    EXPECT_LE(piece + bytes, arena.data() + arena.size());
    std::memset(piece, static_cast<int>(pieces.size() + 1), bytes);
    pieces.emplace_back(piece, bytes);
  }
  for (size_t i = 0; i < pieces.size(); i++) {
    const auto [piece, bytes] = pieces[i];
    EXPECT_TRUE(std::all_of(piece, piece + bytes, [i](std::byte b) { return b == std::byte(i + 1); })) << i;
  }
}

TEST(Arena, GivesAllItHasAndNoMore) {
  Arena arena(4 * Arena::kAlignment, "test");
  arena.take(3 * Arena::kAlignment);
  EXPECT_THROW(arena.take(Arena::kAlignment + 1), Error);
  EXPECT_EQ(arena.used(), 3 * Arena::kAlignment) << "a refused piece takes nothing";
  EXPECT_NE(arena.take(Arena::kAlignment), nullptr);
  EXPECT_THROW(arena.take(1), Error);
}

TEST(Arena, RefusesPiecesNearTheEndOfTheAddressSpace) {
  Arena arena(1024, "test");
  for (const size_t less : {size_t{0}, size_t{1}, Arena::kAlignment - 2, Arena::kAlignment - 1, Arena::kAlignment}) {
    EXPECT_THROW(arena.take(kMost - less), Error) << "2^64 - " << less + 1 << " bytes were granted";
  }
  EXPECT_EQ(arena.used(), 0u);
}

TEST(Arena, SaysWhatForAndHowMuchWhenMemoryIsMissing) {
  std::string text;
  EXPECT_EQ(kind_of_failure(size_t{1} << 60, "state of all requests", &text), ErrorKind::out_of_memory);
  EXPECT_NE(text.find("state of all requests"), std::string::npos) << text;
  EXPECT_NE(text.find(std::to_string(size_t{1} << 60)), std::string::npos) << text;
}

TEST(Arena, RefusesSizesThatRoundPastTheAddressSpace) {
  for (const size_t bytes : {kMost, kMost - 1, kMost - Arena::kAlignment + 2}) {
    EXPECT_EQ(kind_of_failure(bytes, "test"), ErrorKind::out_of_memory);
  }
}

TEST(Arena, EmptyHoldsNothing) {
  Arena none, zero(0, "test");
  for (Arena* arena : {&none, &zero}) {
    EXPECT_EQ(arena->size(), 0u);
    EXPECT_THROW(arena->take(1), Error);
  }
}

TEST(Arena, MovesWithItsPieces) {
  Arena first(1000, "test");
  auto* piece = static_cast<char*>(first.take(100));
  std::memset(piece, 7, 100);
  Arena second(std::move(first));
  EXPECT_EQ(second.used(), Arena::aligned(100));
  EXPECT_EQ(first.size(), 0u);
  EXPECT_THROW(first.take(1), Error);
  Arena third(64, "test");
  third = std::move(second);
  EXPECT_EQ(third.size(), Arena::aligned(1000));
  EXPECT_EQ(static_cast<void*>(third.data()), piece);
  EXPECT_TRUE(std::all_of(piece, piece + 100, [](char c) { return c == 7; }));
  EXPECT_NE(third.take(100), piece);
}

}  // namespace
}  // namespace deltaring
