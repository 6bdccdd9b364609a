// How Errors are thrown. Library code throws them and never prints or exits; cli/ turns them into an exit code.
#pragma once
#include <fmt/core.h>

#include <utility>

#include "deltaring/error.h"

namespace deltaring {

// A message says what was asked, what is possible and a value that works.
template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

// A broken contract between two of our own layers; `what` names the argument with its symbolic shape.
template <class... Args>
void check(bool ok, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) fail(ErrorKind::invalid_argument, format, std::forward<Args>(args)...);
}

}  // namespace deltaring
