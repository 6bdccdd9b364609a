#include "base/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace deltaring {

Arena::Arena(size_t bytes, const char* purpose) : size_(aligned(bytes)) {
  if (bytes == 0) return;
  void* mapping =
      size_ < bytes ? MAP_FAILED : mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    const int error = size_ < bytes ? ENOMEM : errno;
    size_ = 0;
    fail(ErrorKind::out_of_memory, "{}: {} bytes ({:.1f} MiB) could not be had: {}", purpose, bytes,
         static_cast<double>(bytes) / (1 << 20), std::strerror(error));
  }
  data_ = static_cast<std::byte*>(mapping);
  // Large pages where the system has them: a state is read from end to end, and page walks would cost as much again.
  madvise(mapping, size_, MADV_HUGEPAGE);
}

Arena::~Arena() {
  if (data_) munmap(data_, size_);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      used_(std::exchange(other.used_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(used_, other.used_);
  return *this;
}

void* Arena::take(size_t bytes) {
  const size_t piece = aligned(bytes);
  check(piece >= bytes && piece <= size_ - used_, "arena: {} bytes asked, {} of {} left", bytes, size_ - used_, size_);
  std::byte* start = data_ + used_;
  used_ += piece;
  return start;
}

}  // namespace deltaring
