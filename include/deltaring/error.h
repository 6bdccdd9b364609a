// The one exception of the project: its text says what was asked, what is possible and a value that works.
#pragma once
#include <stdexcept>
#include <string>

namespace deltaring {

enum class ErrorKind {
  invalid_argument,  // the caller asked for something impossible
  not_found,         // a file, folder or tensor is missing
  unsupported,       // valid elsewhere, not here: refused by name
  corrupt,           // bytes that contradict themselves
  out_of_memory,     // the plan does not fit
  out_of_reach,      // a rewind to where no record reaches back: the tokens must be prefilled again
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace deltaring
