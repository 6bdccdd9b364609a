// The lines that the program prints and writes.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "numerics/chain.h"

namespace deltaring::numerics {

using Json = nlohmann::ordered_json;

// Four significant digits.
double short_number(double x);
std::vector<double> short_numbers(const std::vector<double>& x);

class Report {
 public:
  // Keeps a line, in Google Benchmark's form so that tools/bench_result takes it. Prints name and `text`.
  void add(const std::string& name, double seconds, const Json& figures, const std::string& text);
  // Throws Error(not_found) naming the file.
  void write(const std::string& file) const;

 private:
  Json lines_ = Json::array();
};

// The gate: no growth beyond kLimit times plain decoding's error, of the same state dtype on the same inputs. Errors
// are those over heads; the worst single head is kept beside them.
class Gate {
 public:
  static constexpr double kLimit = 1.1;
  static constexpr std::array<int64_t, 4> kMarks = {1024, 2048, 4096, 8192};

  explicit Gate(const std::vector<int64_t>& marks);
  // Takes the errors of a scheme into the worst of `group`; returns their ratios to plain for its line.
  Json compare(const std::string& group, const Errors& scheme, const Errors& plain);
  // A line per group. True if all are within the limit.
  bool report(Report& report) const;

 private:
  struct Worst {
    std::string group;
    std::vector<double> state, out;  // [gate marks]
    double head = 0;
  };
  std::vector<size_t> at_;  // indices of kMarks in the marks
  std::vector<Worst> groups_;
};

}  // namespace deltaring::numerics
