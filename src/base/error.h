// The one exception of the project. Library code throws it and never prints or exits; cli/ turns it into an exit code.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace deltaring {

enum class ErrorKind {
  invalid_argument,  // the caller asked for something impossible
  not_found,         // a file, folder or tensor is missing
  unsupported,       // valid elsewhere, not here: refused by name
  corrupt,           // bytes that contradict themselves
  out_of_memory,     // the plan does not fit
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

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
