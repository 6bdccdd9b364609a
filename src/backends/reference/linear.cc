#include <cmath>

#include "backends/reference/ops.h"
#include "backends/reference/weight.h"
#include "base/error.h"

namespace deltaring::reference {

void linear(const LinearArgs& args, Stream&) {
  check(args);
  const int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.w.N();
  for (int64_t m = 0; m < M; m++) {
    for (int64_t n = 0; n < N; n++) {
      double sum = args.accumulate ? *args.out.f32(m, n) : 0.0;
      for (int64_t k = 0; k < K; k++) {
        sum += double{*args.x.f32(m, k)} * weight(args.w, n, k);
      }
      *args.out.f32(m, n) = static_cast<float>(sum);
    }
  }
}

void embedding(const EmbeddingArgs& args, Stream&) {
  check(args);
  const int64_t tokens = args.out.shape[0], vocab = args.table.shape[0], H = args.table.shape[1];
  for (int64_t i = 0; i < tokens; i++) {
    const int64_t id = args.ids[i];
    check(id >= 0 && id < vocab, "embedding: ids[{}] is {}, want [0, {})", i, id, vocab);
    for (int64_t c = 0; c < H; c++) {
      *args.out.f32(i, c) = load_as_float(args.table.data, args.table.dtype, args.table.offset(id, c));
    }
  }
}

void swiglu(const SwigluArgs& args, Stream&) {
  check(args);
  const auto [tokens, I] = args.out.shape;
  for (int64_t t = 0; t < tokens; t++) {
    for (int64_t i = 0; i < I; i++) {
      const double gate = *args.gate.f32(t, i), up = *args.up.f32(t, i);
      *args.out.f32(t, i) = static_cast<float>(gate / (1.0 + std::exp(-gate)) * up);
    }
  }
}

}  // namespace deltaring::reference
