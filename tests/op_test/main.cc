// op_test: is an op of a backend correct, in bounds, fast, there at all? One table of cases (cases.h) answers.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "backends/tables.h"
#include "op_test/modes.h"

namespace deltaring::op_test {
namespace {

// An exact name means that case alone.
std::vector<Case> chosen(const Options& o) {
  std::vector<Case> cases;
  for (const Case& c : all_cases()) {
    if (!o.ops.empty() && std::ranges::find(o.ops, c.op) == o.ops.end()) continue;
    if (o.filter == c.name()) return {c};
    if (c.name().find(o.filter) != std::string::npos) cases.push_back(c);
  }
  return cases;
}

int run(const Options& o) {
  const OpTable& table = backend(o.backend);
  const auto mode = o.mode == "perf" ? measure : o.mode == "support" ? support : test;
  const std::vector<Case> cases = chosen(o);
  if (cases.empty()) {
    std::cerr << "no case of " << (o.ops.empty() ? "any op" : fmt::format("{}", fmt::join(o.ops, ", ")))
              << " is named like '" << o.filter << "'; --list shows all names\n";
    return 2;
  }
  int counts[3] = {};
  for (const Case& c : cases) {
    if (o.list) {
      std::cout << c.name() << "\n";
      continue;
    }
    Outcome outcome = mode(c, table, o);
    counts[static_cast<int>(outcome.status)]++;
    outcome.json.update(
        {{"op", c.op}, {"case", c.name()}, {"backend", table.name}, {"mode", o.mode}, {"seed", o.seed}});
    std::cout << (o.json ? outcome.json.dump() : fmt::format("{:<100} {}", c.name(), outcome.text)) << std::endl;
  }
  const auto [ok, failed, unsupported] = counts;
  if (!o.json && !o.list)
    std::cout << fmt::format("{} {}: {} cases, {} ok, {} failed, {} unsupported\n", table.name, o.mode, cases.size(),
                             ok, failed, unsupported);
  return failed > 0 || (o.require_all && unsupported > 0) ? 1 : 0;
}

}  // namespace
}  // namespace deltaring::op_test

int main(int argc, char** argv) {
  using namespace deltaring::op_test;
  Options o;
  CLI::App app("Checks, times and asks for the replay ops of a backend, case by case.");
  app.add_option(
      "--op", o.ops,
      "gdn_gates, gdn_verify, gdn_prefill, gdn_fold, conv, snapshot_verify, snapshot_commit, seat_copy, seat_pack, "
      "seat_unpack, linear, moe_route or moe_experts, one or several; all if not given");
  app.add_option("--backend", o.backend, "reference, cpu, ...")->capture_default_str();
  app.add_option("--mode", o.mode,
                 "test: against the float64 oracle; perf: time and bytes; support: which cases it takes")
      ->check(CLI::IsMember({"test", "perf", "support"}))
      ->capture_default_str();
  app.add_option("--filter", o.filter, "cases whose name contains this");
  app.add_option("--seed", o.seed, "of all inputs")->capture_default_str();
  app.add_option("--threads", o.threads, "0: one per core")->check(CLI::Range(0, 1024))->capture_default_str();
  app.add_option("--rounds", o.rounds, "timed rounds of perf; the median counts")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_flag("--json", o.json, "one object a line, one line a case");
  app.add_flag("--list", o.list, "names only");
  app.add_flag("--require-all", o.require_all, "an unsupported case is a failure");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(o);
  } catch (const std::exception& error) {
    std::cerr << "op_test: " << error.what() << "\n";
    return 2;
  }
}
