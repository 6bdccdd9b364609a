#include "base/scratch.h"

namespace deltaring {

int64_t scratch_bytes(int64_t rows, int64_t columns) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(rows, columns, &bytes) || __builtin_mul_overflow(bytes, int64_t{sizeof(float)}, &bytes) ||
      bytes >> 56 != 0) {
    fail(ErrorKind::out_of_memory,
         "a scratch matrix of {} x {} floats; a smaller --chunked-prefill-size or fewer requests work", rows, columns);
  }
  return static_cast<int64_t>(Arena::aligned(static_cast<size_t>(bytes)));
}

}  // namespace deltaring
