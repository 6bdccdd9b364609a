#include "backends/cpu/ops.h"

namespace deltaring::cpu {

void commit(const CommitArgs& args, Stream&) {
  check(args);
  commit_rows(args);
}

}  // namespace deltaring::cpu
