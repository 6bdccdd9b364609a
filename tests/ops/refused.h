// Refusals of op arguments, one broken field at a time.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "base/error.h"

namespace deltaring::testing {

template <class Args>
struct Fault {
  std::function<void(Args&)> make;
  const char* message;  // part of the refusal: the argument with its symbolic shape and what it holds
};

// `call` is an op or its check.
template <class Args>
void expect_refused(
    const Args& good, const std::vector<Fault<Args>>& faults,
    const std::function<void(const Args&)>& call = [](const Args& args) { check(args); }) {
  EXPECT_NO_THROW(call(good));
  for (const Fault<Args>& fault : faults) {
    Args bad = good;
    fault.make(bad);
    try {
      call(bad);
      ADD_FAILURE() << "accepted: " << fault.message;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(fault.message));
    }
  }
}

}  // namespace deltaring::testing
