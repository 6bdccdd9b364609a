// A side state that counts the tokens it is told of, as an n-gram history or a drafter's context would.
#pragma once
#include <vector>

#include "state/side_state.h"

namespace deltaring::test {

class CountingSide final : public SideState {
 public:
  explicit CountingSide(int64_t seats) : seats_(static_cast<size_t>(seats)) {}

  const char* name() const override { return "counter"; }
  void clear(int32_t seat) override { seats_[seat] = {}, clears++; }
  void move(int32_t seat, Cursor from, Cursor to) override {
    Count& count = seats_[seat];
    if (from != count.cursor) broken = true;
    count.tokens += to.pos - from.pos, count.cursor = to, moves++;
  }
  std::span<std::byte> bytes(int32_t seat) override { return std::as_writable_bytes(std::span(&seats_[seat], 1)); }

  int64_t tokens(int32_t seat) const { return seats_[seat].tokens; }
  Cursor cursor(int32_t seat) const { return seats_[seat].cursor; }

  bool broken = false;  // a move did not start where the last one had ended
  int64_t clears = 0, moves = 0;

 private:
  struct Count {
    int64_t tokens = 0;
    Cursor cursor;
  };
  std::vector<Count> seats_;
};

}  // namespace deltaring::test
