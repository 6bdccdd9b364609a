// State of a request that lives outside the pool's rings: a drafter's context, a counter of tokens. Attached to the
// pool it follows the cursor: whatever moves a cursor tells it, so that no way to commit can forget it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/cursor.h"

namespace deltaring {

class SideState {
 public:
  virtual ~SideState() = default;
  virtual const char* name() const = 0;
  // The seat starts a new request.
  virtual void clear(int32_t seat) = 0;
  // A commit (to.pos >= from.pos) or a rewind (to.pos < from.pos).
  virtual void move(int32_t seat, Cursor from, Cursor to) = 0;
  // What a copy or an export of the seat takes along: always as many bytes. Empty: nothing.
  virtual std::span<std::byte> bytes(int32_t seat) = 0;
  // Whether bytes that an import brought are a state of a seat with the cursor: a file may be forged.
  virtual bool possible(int32_t, Cursor) { return true; }
};

}  // namespace deltaring
