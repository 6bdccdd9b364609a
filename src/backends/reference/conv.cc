#include <algorithm>
#include <cmath>

#include "backends/reference/ops.h"

namespace deltaring::reference {

void conv(const ConvArgs& args, Stream&) {
  check(args);
  const Rows& rows = args.rows;
  const int64_t C = args.x.shape[1], taps = args.weight.shape[1], Rc = args.ring.shape[1];
  for (int32_t b = 0; b < rows.count; b++) {
    const int32_t seat = rows.seat[b];
    const int64_t first = seat < 0 ? 0 : rows.first[b], end = first + rows.length(b);
    for (int64_t p = first; p < end; p++) {
      const int64_t token = rows.start[b] + (p - first);
      for (int64_t c = 0; c < C; c++) {
        double sum = 0;
        for (int64_t j = 0; j < taps && seat >= 0; j++) {
          const int64_t from = p - (taps - 1) + j;
          if (from < 0) continue;
          const float x = from < first ? *args.ring.f32(seat, from % Rc, c) : *args.x.f32(token - p + from, c);
          sum += static_cast<double>(*args.weight.f32(c, j)) * x;
        }
        *args.out.f32(token, c) = static_cast<float>(seat < 0 ? 0 : sum / (1 + std::exp(-sum)));
      }
    }
    for (int64_t p = std::max(first, end - Rc); p < end && seat >= 0; p++) {
      std::copy_n(args.x.f32(rows.start[b] + (p - first)), C, args.ring.f32(seat, p % Rc));
    }
  }
}

}  // namespace deltaring::reference
