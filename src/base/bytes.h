// Sizes as people read them.
#pragma once
#include <fmt/core.h>

#include <string>

namespace deltaring {

// "3.4 MiB", "72.56 GiB", "512 B".
inline std::string human_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 4; unit++) bytes /= 1024;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : unit < 3 ? 1 : 2, kUnits[unit]);
}

}  // namespace deltaring
