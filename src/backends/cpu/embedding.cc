#include "backends/cpu/for_rows.h"
#include "backends/cpu/ops.h"
#include "base/error.h"

namespace deltaring::cpu {

// Memory traffic: one row of the table and of out a token.
void embedding(const EmbeddingArgs& args, Stream& stream) {
  check(args);
  const int64_t tokens = args.out.shape[0], vocab = args.table.shape[0], H = args.table.shape[1];
  for_rows(stream, tokens, H, [&](int64_t i) {
    const int64_t id = args.ids[i];
    check(id >= 0 && id < vocab, "embedding: ids[{}] is {}, want [0, {})", i, id, vocab);
    load_floats(args.table.data, args.table.dtype, args.table.offset(id), H, args.out.f32(i));
  });
}

}  // namespace deltaring::cpu
