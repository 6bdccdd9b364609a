#include <algorithm>
#include <cmath>

#include "backends/reference/ops.h"

namespace deltaring::reference {

namespace {

template <int N>
float at(const View<N>& view, auto... index) {
  return load_as_float(view.data, view.dtype, view.offset(index...));
}

}  // namespace

void conv(const ConvArgs& args, Stream&) {
  check(args);
  const auto& [rows, x, weight, ring, out] = args;
  const int64_t C = x.shape[1], taps = weight.shape[1], Rc = ring.shape[1];
  for (int32_t b = 0; b < rows.count; b++) {
    const int32_t seat = rows.seat[b];
    const int64_t first = seat < 0 ? 0 : rows.first[b], end = first + rows.length(b), begin = rows.start[b] - first;
    for (int64_t p = first; p < end; p++) {
      for (int64_t c = 0; c < C; c++) {
        double sum = 0;
        for (int64_t j = 0; j < taps && seat >= 0; j++) {
          const int64_t from = p - (taps - 1) + j;
          if (from < 0) continue;
          sum += double{at(weight, c, j)} * (from < first ? at(ring, seat, from % Rc, c) : at(x, begin + from, c));
        }
        const double y = seat < 0 ? 0 : sum / (1 + std::exp(-sum));
        store_from_float(out.data, out.dtype, out.offset(begin + p, c), static_cast<float>(y));
      }
    }
    for (int64_t p = std::max(first, end - Rc); p < end && seat >= 0; p++) {
      for (int64_t c = 0; c < C; c++)
        store_from_float(ring.data, ring.dtype, ring.offset(seat, p % Rc, c), at(x, begin + p, c));
    }
  }
}

}  // namespace deltaring::reference
