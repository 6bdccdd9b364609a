// One zeroed allocation, handed out in aligned pieces. Freed as a whole.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace deltaring {

class Arena {
 public:
  static constexpr size_t kAlignment = 64;  // a cache line, and the widest vector
  static constexpr size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  Arena() = default;
  // Pages come zeroed and are only backed once touched. Throws Error(out_of_memory) naming `purpose` and the bytes
  // asked.
  Arena(size_t bytes, const char* purpose);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  // The next `bytes` bytes, aligned to kAlignment. Throws Error when the arena is too small for them.
  void* take(size_t bytes);
  size_t size() const { return size_; }
  size_t used() const { return used_; }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t used_ = 0;
};

}  // namespace deltaring
