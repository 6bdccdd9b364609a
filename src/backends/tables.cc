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

std::vector<const OpTable*> compiled() {
  return {
      &reference_ops(),
      &cpu_ops(),
#ifdef DELTARING_CUDA
      &cuda_ops(),
#endif
  };
}

}  // namespace

std::vector<const OpTable*> backends() {
  std::vector<const OpTable*> tables = compiled();
  std::erase_if(tables, [](const OpTable* table) { return table->make_stream == nullptr; });
  return tables;
}

const OpTable& backend(std::string_view name) {
  std::string names;
  for (const OpTable* table : compiled()) {
    if (name == table->name) return *table;
    names += names.empty() ? table->name : std::string(", ") + table->name;
  }
  fail(ErrorKind::unsupported, "--backend {}: this build has {}; cpu works", name, names);
}

}  // namespace deltaring
