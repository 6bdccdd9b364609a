// The subcommands. Each adds itself to the app; its callback sets the exit code.
#pragma once
#include <CLI/CLI.hpp>

#include "deltaring/engine.h"

namespace deltaring::cli {

enum ExitCode { kSuccess = 0, kFailedCheck = 1, kBadInput = 2 };

void add_generate(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);

// The flags that describe an engine, the same for every subcommand that loads one.
void add_engine_flags(CLI::App& command, EngineOptions& options);

// Reports notices and a progress bar on standard error, the bar only on a terminal.
void report_loading(EngineOptions& options);

// "3.4 MiB", "512 B".
std::string human_bytes(double bytes);

}  // namespace deltaring::cli
