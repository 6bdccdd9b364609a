#include <algorithm>
#include <limits>

#include "backends/reference/ops.h"

namespace deltaring::reference {

namespace {

int64_t code(const uint8_t* row, int64_t k) {
  const int64_t half = LinearI4Args::kGroup / 2, byte = k / LinearI4Args::kGroup * half + k % half;
  return k % LinearI4Args::kGroup < half ? row[byte] & 15 : row[byte] >> 4;
}

}  // namespace

void linear_i4(const LinearI4Args& args, Stream&) {
  check(args);
  const int64_t peaks = (args.N + args.kPeak - 1) / args.kPeak;
  for (int64_t m = 0; m < args.M; m++) {
    if (args.peaks) std::fill_n(args.peaks + m * peaks, peaks, -std::numeric_limits<float>::infinity());
    for (int64_t n = 0; n < args.N; n++) {
      const int64_t r = args.rows ? args.rows[n] : n;
      int64_t sum = 0;
      for (int64_t k = 0; k < args.K; k++) {
        sum += int64_t{args.x[m * args.K + k]} * (2 * code(args.w + r * args.K / 2, k) - 15);
      }
      const float out = static_cast<float>(static_cast<double>(sum) * args.scale[r]);
      *args.out.f32(m, n) = out;
      if (args.peaks) args.peaks[m * peaks + n / args.kPeak] = std::max(args.peaks[m * peaks + n / args.kPeak], out);
    }
  }
}

}  // namespace deltaring::reference
