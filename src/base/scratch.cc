#include "base/scratch.h"

namespace deltaring {

Arena allocate_scratch(std::initializer_list<ScratchMatrix> matrices, const char* purpose) {
  const auto bytes_of = [&](const ScratchMatrix& m) {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(m.rows, m.columns, &bytes) ||
        __builtin_mul_overflow(bytes, int64_t{sizeof(float)}, &bytes) || bytes >> 60 != 0) {
      fail(ErrorKind::out_of_memory, "{}: a matrix of {} x {} floats", purpose, m.rows, m.columns);
    }
    return Arena::aligned(static_cast<size_t>(bytes));
  };
  size_t total = 0;
  for (const ScratchMatrix& m : matrices) total += bytes_of(m);
  Arena arena(total, purpose);
  for (const ScratchMatrix& m : matrices) *m.view = dense<2>(arena.take(bytes_of(m)), DType::f32, {m.rows, m.columns});
  return arena;
}

}  // namespace deltaring
