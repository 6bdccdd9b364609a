#include "backends/tables.h"

#include <string>

#include "backends/cpu/table.h"
#include "backends/reference/table.h"
#include "base/error.h"
#ifdef DELTARING_CUDA
#include "backends/cuda/table.h"
#endif

namespace deltaring {

namespace {

// A backend of this build, and why nothing of it can run on this machine: empty = it can.
struct Entry {
  const OpTable& table;
  std::string missing;
};

std::vector<Entry> compiled() {
  return {
      {reference_ops(), {}},
      {cpu_ops(), {}},
#ifdef DELTARING_CUDA
      {cuda_ops(), cuda_missing()},
#endif
  };
}

}  // namespace

std::vector<const OpTable*> backends() {
  std::vector<const OpTable*> tables;
  for (const Entry& entry : compiled()) {
    if (entry.missing.empty()) tables.push_back(&entry.table);
  }
  return tables;
}

const OpTable& backend(std::string_view name) {
  std::string names;
  for (const Entry& entry : compiled()) {
    if (name == entry.table.name) {
      if (entry.missing.empty()) return entry.table;
      fail(ErrorKind::unsupported, "--backend {}: {}; cpu works", name, entry.missing);
    }
    names += names.empty() ? entry.table.name : std::string(", ") + entry.table.name;
  }
  fail(ErrorKind::unsupported, "--backend {}: this build has {}; cpu works", name, names);
}

}  // namespace deltaring
