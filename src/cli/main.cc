// Parses the command line, runs one subcommand and turns every failure into one line and an exit code.
#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"

namespace {

using deltaring::cli::kBadInput;

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); j++) row[j] = j;
  for (size_t i = 1; i <= a.size(); i++) {
    size_t diagonal = row[0]++;
    for (size_t j = 1; j <= b.size(); j++) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

// The flag or subcommand nearest to what was typed.
std::string nearest(const CLI::App& app, const std::string& typed) {
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands({})) known.push_back(command->get_name());
  for (const CLI::App* command : app.get_subcommands()) {
    for (const CLI::Option* option : command->get_options()) known.push_back("--" + option->get_single_name());
  }
  const std::string word = typed.substr(0, typed.find('='));
  if (typed.starts_with("-")) std::erase_if(known, [](const std::string& name) { return !name.starts_with("-"); });
  const auto closer = [&](const std::string& a, const std::string& b) {
    return edit_distance(a, word) < edit_distance(b, word);
  };
  return *std::min_element(known.begin(), known.end(), closer);
}

int refuse(const std::string& message) {
  fmt::print(stderr, "error: {}\n", message);
  return kBadInput;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Text from Gated-DeltaNet hybrid models, decoded speculatively through a replay ring", "deltaring"};
  app.set_version_flag("--version", "deltaring 0.1.0");
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 a check failed (doctor, --compare), 2 bad input or too little memory, 130 interrupted");
  int exit_code = deltaring::cli::kSuccess;
  deltaring::cli::add_generate(app, exit_code);
  deltaring::cli::add_inspect(app, exit_code);
  deltaring::cli::add_plan(app, exit_code);
  deltaring::cli::add_doctor(app, exit_code);
  deltaring::cli::add_bench_spec(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> unknown = app.remaining(true);
    if (unknown.empty()) return refuse(fmt::format("{}; --help shows the possible values", error.what()));
    const std::string& typed = unknown.front();
    return refuse(fmt::format("'{}' is not known here; did you mean {}? --help lists what is possible", typed,
                              nearest(app, typed)));
  } catch (const deltaring::Error& error) {
    return refuse(error.what());
  } catch (const std::bad_alloc&) {
    return refuse(
        "out of memory; a smaller --context-length or --chunked-prefill-size needs less, 2048 and 64 work for most "
        "models");
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
  return exit_code;
}
