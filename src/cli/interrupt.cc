#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

namespace deltaring::cli {

namespace {

std::atomic<bool> asked{false};

void interrupt(int) {
  if (!asked.exchange(true)) return;
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);
}

}  // namespace

void catch_interrupts() { std::signal(SIGINT, interrupt); }
bool interrupted() { return asked; }

}  // namespace deltaring::cli
