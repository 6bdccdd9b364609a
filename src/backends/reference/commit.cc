#include "backends/reference/ops.h"

namespace deltaring::reference {

void commit(const CommitArgs& args, Stream&) {
  check(args);
  for (int32_t b = 0; b < args.count; b++) {
    if (args.seat[b] >= 0) move_cursor(args, b);
  }
}

}  // namespace deltaring::reference
