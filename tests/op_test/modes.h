// What op_test does with a case, and how it says so.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "op_test/job.h"

namespace deltaring::op_test {

struct Options {
  std::vector<std::string> ops;  // empty: all
  std::string backend = "cpu", mode = "test", filter;
  uint64_t seed = 1;
  int threads = 1;  // of the stream; 0 = one per core
  int rounds = 11;  // perf: timed rounds, of which the median counts
  bool json = false, list = false, require_all = false;
};

enum class Status { ok, failed, unsupported };

struct Outcome {
  Status status = Status::ok;
  std::string text;     // for people, behind the name of the case
  nlohmann::json json;  // the same for programs, without the name
};

// Correct and in bounds?
Outcome test(const Case& c, const OpTable& table, const Options& options);
// How fast, against a plain read of as many bytes?
Outcome measure(const Case& c, const OpTable& table, const Options& options);
// Does the backend take it?
Outcome support(const Case& c, const OpTable& table, const Options& options);

}  // namespace deltaring::op_test
