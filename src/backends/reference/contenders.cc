#include "backends/reference/ops.h"

namespace deltaring::reference {

void contenders(const ContendersArgs& args, Stream&) {
  check(args);
  for (int64_t m = 0; m < args.sum[0].value.shape[0]; m++) {
    args.ids[m].clear();
    if (args.rest) args.rest[m].clear();
    for (int64_t n = 0; n < args.valid; n++) {
      const auto most_of = [&](const Estimate& e) {
        return double{e.unit[m]} * *e.value.f32(m, n) + double{e.slack[m]} * e.error[n];
      };
      double rest = 0;
      for (const Estimate& e : args.sum.subspan(1)) rest += most_of(e);
      if (most_of(args.sum[0]) + rest < args.least[m]) continue;
      args.ids[m].push_back(static_cast<int32_t>(n));
      if (args.rest) args.rest[m].push_back(static_cast<float>(rest));
    }
  }
}

}  // namespace deltaring::reference
