#include "backends/reference/ops.h"

namespace deltaring::reference {

void linear_i8(const LinearI8Args& args, Stream&) {
  check(args);
  for (int64_t m = 0; m < args.M; m++) {
    for (int64_t n = 0; n < args.N; n++) {
      int64_t sum = 0;
      for (int64_t k = 0; k < args.K; k++) sum += int64_t{args.x[m * args.K + k]} * args.w[n * args.K + k];
      *args.out.f32(m, n) = static_cast<float>(static_cast<double>(sum) * args.scale[n]);
    }
  }
}

}  // namespace deltaring::reference
