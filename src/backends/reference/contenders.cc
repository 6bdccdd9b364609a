#include "backends/reference/ops.h"

namespace deltaring::reference {

void contenders(const ContendersArgs& args, Stream&) {
  check(args);
  for (int64_t m = 0; m < args.sum[0].value.shape[0]; m++) {
    args.ids[m].clear();
    for (int64_t n = 0; n < args.valid; n++) {
      double most = 0;
      for (const Estimate& e : args.sum) {
        most += double{e.unit[m]} * *e.value.f32(m, n) + double{e.slack[m]} * e.error[n];
      }
      if (!(most < args.least[m])) args.ids[m].push_back(static_cast<int32_t>(n));
    }
  }
}

}  // namespace deltaring::reference
