// Loops over rows that are often too small for threads.
#pragma once
#include <cstdint>

#include "backends/cpu/stream.h"

namespace deltaring::cpu {

constexpr int64_t kInlineWork = 1 << 15;  // operations that take about as long as waking a thread, 10 us

// body(i) for every i in [0, count): on the pool when count times the `work` of one row is worth it, else here.
template <class Body>
void for_rows(Stream& stream, int64_t count, int64_t work, const Body& body) {
  if (count * work > kInlineWork) return pool_of(stream).parallel_for(count, body);
  for (int64_t i = 0; i < count; i++) body(i);
}

}  // namespace deltaring::cpu
