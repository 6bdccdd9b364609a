#include "numerics/report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "base/error.h"

namespace deltaring::numerics {

namespace {

// A chain that ended in NaN is infinitely worse than plain.
double ratio(double scheme, double plain) {
  const double r = scheme / plain;
  return std::isnan(r) ? std::numeric_limits<double>::infinity() : r;
}

}  // namespace

double short_number(double x) { return std::stod(fmt::format("{:.4g}", x)); }

std::vector<double> short_numbers(const std::vector<double>& x) {
  std::vector<double> shorter(x.size());
  std::ranges::transform(x, shorter.begin(), short_number);
  return shorter;
}

void Report::add(const std::string& name, double seconds, const Json& figures, const std::string& text) {
  fmt::print("{:<58} {:6.2f} s  {}\n", name, seconds, text);
  std::fflush(stdout);
  Json line = {{"name", name}, {"run_type", "iteration"}};
  line.update(figures);
  line["real_time"] = seconds, line["time_unit"] = "s";
  lines_.push_back(line);
}

void Report::write(const std::string& file) const {
  std::ofstream out(file);
  out << Json{{"benchmarks", lines_}}.dump(1) << '\n';
  if (!out.flush()) fail(ErrorKind::not_found, "cannot write the result file '{}'", file);
}

Gate::Gate(const std::vector<int64_t>& marks) {
  for (const int64_t mark : kMarks) {
    const auto found = std::ranges::find(marks, mark);
    if (found != marks.end()) at_.push_back(found - marks.begin());
  }
}

Json Gate::compare(const std::string& group, const Errors& scheme, const Errors& plain) {
  auto worst = std::ranges::find(groups_, group, &Worst::group);
  if (worst == groups_.end()) {
    groups_.push_back({group, std::vector<double>(at_.size()), std::vector<double>(at_.size())});
    worst = groups_.end() - 1;
  }
  std::vector<double> state, out;
  double head = 0;
  for (const size_t m : at_) {
    state.push_back(ratio(over_heads(scheme.state[m]), over_heads(plain.state[m])));
    out.push_back(ratio(over_heads(scheme.out[m]), over_heads(plain.out[m])));
    for (size_t h = 0; h < plain.state[m].size(); h++)
      head = std::max({head, ratio(scheme.state[m][h], plain.state[m][h]), ratio(scheme.out[m][h], plain.out[m][h])});
  }
  for (size_t i = 0; i < at_.size(); i++) {
    worst->state[i] = std::max(worst->state[i], state[i]);
    worst->out[i] = std::max(worst->out[i], out[i]);
  }
  worst->head = std::max(worst->head, head);
  return {{"times_plain_state", short_numbers(state)},
          {"times_plain_output", short_numbers(out)},
          {"times_plain_worst_head", short_number(head)}};
}

bool Gate::report(Report& report) const {
  bool passed = true;
  for (const Worst& w : groups_) {
    const auto within = [](double ratio) { return ratio <= kLimit; };
    const bool ok = std::ranges::all_of(w.state, within) && std::ranges::all_of(w.out, within);
    passed = passed && ok;
    const std::vector<int64_t> marks(kMarks.begin(), kMarks.begin() + static_cast<int64_t>(at_.size()));
    report.add("gate/" + w.group, 0,
               {{"limit", kLimit},
                {"at", marks},
                {"times_plain_state", short_numbers(w.state)},
                {"times_plain_output", short_numbers(w.out)},
                {"times_plain_worst_head", short_number(w.head)},
                {"passed", ok}},
               fmt::format("{}: state {:.2f}, output {:.2f} times plain; worst head {:.2f}", ok ? "pass" : "FAIL",
                           fmt::join(w.state, " "), fmt::join(w.out, " "), w.head));
  }
  return passed;
}

}  // namespace deltaring::numerics
