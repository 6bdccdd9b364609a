#include "backends/reference/ops.h"

namespace deltaring::reference {

void commit(const CommitArgs& args, Stream&) {
  check(args);
  commit_rows(args);
}

}  // namespace deltaring::reference
