// How a call was refused.
#pragma once
#include <optional>
#include <string>

#include "base/error.h"

namespace deltaring::test {

// The kind of the Error that `call` throws, and its text; nothing when it throws none.
template <class Call>
std::optional<ErrorKind> refusal(const Call& call, std::string* what = nullptr) {
  try {
    call();
  } catch (const Error& e) {
    if (what) *what = e.what();
    return e.kind();
  }
  return std::nullopt;
}

}  // namespace deltaring::test
