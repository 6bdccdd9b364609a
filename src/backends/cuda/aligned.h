// Whether memory may move in 16-byte pieces.
#pragma once
#include <cstdint>

#include "base/view.h"

namespace deltaring::cuda {

// Every innermost row of the view begins on 16 bytes and is a whole number of them.
template <int N>
bool aligned_rows(const View<N>& view) {
  const auto multiple = [](uint64_t bytes) { return bytes % 16 == 0; };
  const uint64_t size = size_of(view.dtype);
  bool aligned = multiple(reinterpret_cast<uintptr_t>(view.data)) && multiple(view.shape[N - 1] * size);
  for (int d = 0; d + 1 < N; d++)
    aligned = aligned && (view.shape[d] <= 1 || multiple(static_cast<uint64_t>(view.stride[d]) * size));
  return aligned;
}

}  // namespace deltaring::cuda
