#include "backends/tables.h"

#include <string>

#include "backends/cpu/table.h"
#include "backends/reference/table.h"
#include "base/error.h"

namespace deltaring {

std::vector<const OpTable*> backends() { return {&reference_ops(), &cpu_ops()}; }

const OpTable& backend(std::string_view name) {
  std::string names;
  for (const OpTable* table : backends()) {
    if (name == table->name) return *table;
    names += names.empty() ? table->name : std::string(", ") + table->name;
  }
  fail(ErrorKind::unsupported, "no backend named '{}'; this build has: {}", name, names);
}

}  // namespace deltaring
