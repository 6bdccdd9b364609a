// Memory that the walk of a head will need soon, and how it is brought closer meanwhile.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include "hwy/base.h"

namespace deltaring::cpu {

// `count` pieces of memory, `bytes` each and `stride` bytes apart, that will be needed soon.
struct GdnAhead {
  const void* at;
  int64_t bytes, count = 1, stride = 0;
};

// Brings memory into the second-level cache, a few lines at a time between the arithmetic; the first level is full of
// what that works on.
class Ahead {
 public:
  // All pieces within `calls` > 0 calls.
  Ahead(std::span<const GdnAhead> pieces, int64_t calls) : pieces_(pieces) {
    int64_t lines = 0;
    for (const GdnAhead& piece : pieces) lines += piece.count * ((piece.bytes + kLine - 1) / kLine);
    step_ = (lines + calls - 1) / calls;
  }
  HWY_INLINE void some() {
    for (int64_t wanted = step_; wanted > 0 && (lines_ > 0 || next());) {
      const int64_t now = std::min(wanted, lines_);
      for (const char* end = at_ + now * kLine; at_ != end; at_ += kLine) __builtin_prefetch(at_, 0, 2);
      lines_ -= now, wanted -= now;
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  // Whether there is another row: then it is the one at_ stands in.
  bool next() {
    if (pieces_.empty()) return false;
    const GdnAhead& piece = pieces_.front();
    at_ = static_cast<const char*>(piece.at) + row_ * piece.stride;
    lines_ = (piece.bytes + kLine - 1) / kLine;
    if (++row_ == piece.count) row_ = 0, pieces_ = pieces_.subspan(1);
    return true;
  }

  std::span<const GdnAhead> pieces_;  // those with rows that are still to come
  int64_t row_ = 0, step_;
  const char* at_ = nullptr;
  int64_t lines_ = 0;  // left of the row
};

}  // namespace deltaring::cpu
