// Checks of op arguments, one broken field at a time.
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
  const char* message;  // part of what check must say: the argument with its symbolic shape and what it holds
};

template <class Args>
void expect_refused(const Args& good, const std::vector<Fault<Args>>& faults) {
  EXPECT_NO_THROW(check(good));
  for (const Fault<Args>& fault : faults) {
    Args bad = good;
    fault.make(bad);
    try {
      check(bad);
      ADD_FAILURE() << "accepted: " << fault.message;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(fault.message));
    }
  }
}

}  // namespace deltaring::testing
