#include <algorithm>

#include "backends/cpu/for_rows.h"
#include "backends/cpu/ops.h"
#include "base/error.h"

namespace deltaring::cpu {

namespace {

void widen(const void* in, DType dtype, int64_t count, float* out) {
  const auto* words = static_cast<const uint16_t*>(in);
  switch (dtype) {
    case DType::f32:
      std::copy_n(static_cast<const float*>(in), count, out);
      break;
    case DType::bf16:
      std::transform(words, words + count, out, bf16_to_float);
      break;
    case DType::f16:
      std::transform(words, words + count, out, f16_to_float);
      break;
  }
}

}  // namespace

void embedding(const EmbeddingArgs& args, Stream& stream) {
  check(args);
  const int64_t tokens = args.out.shape[0], vocab = args.table.shape[0], H = args.table.shape[1];
  for_rows(stream, tokens, H, [&](int64_t i) {
    const int64_t id = args.ids[i];
    check(id >= 0 && id < vocab, "embedding: ids[{}] is {}, want [0, {})", i, id, vocab);
    widen(args.table.address(args.table.offset(id)), args.table.dtype, H, args.out.f32(i));
  });
}

}  // namespace deltaring::cpu
