// Runs a program and collects what it writes, standard output and standard error apart.
#pragma once
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace deltaring::test {

struct ProcessOptions {
  std::string input;                       // its standard input
  bool on_terminal = false;                // which comes from a terminal, ^D behind it
  rlim_t address_space = RLIM_INFINITY;    // bytes
  bool interrupt_at_first_output = false;  // SIGINT once standard output has a byte
  int interrupt_after_ms = 0;              // SIGINT so long behind the start; 0 = never
  std::string stdout_path;                 // where standard output goes instead
  int seconds = 60;                        // then it is killed and exit_code is -SIGKILL
};

struct ProcessResult {
  int exit_code = 0;  // minus the signal where one ended it
  std::string out, err;
};

namespace detail {

inline std::FILE* file_of(const std::string& text) {
  std::FILE* file = std::tmpfile();
  if (!file) throw std::runtime_error("tmpfile failed");
  std::fwrite(text.data(), 1, text.size(), file);
  std::rewind(file);
  return file;
}

// A terminal where `text` and ^D have been typed: its end for the program, and the other one, which must stay open.
inline std::array<int, 2> terminal_of(const std::string& text) {
  const int other = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (other < 0 || grantpt(other) != 0 || unlockpt(other) != 0) throw std::runtime_error("no pseudo terminal");
  const int terminal = open(ptsname(other), O_RDWR | O_NOCTTY | O_CLOEXEC);
  const std::string typed = text + "\n\x04";
  if (terminal < 0 || write(other, typed.data(), typed.size()) != static_cast<ssize_t>(typed.size()))
    throw std::runtime_error("no pseudo terminal");
  return {terminal, other};
}

[[noreturn]] inline void exec(const std::vector<std::string>& command, const ProcessOptions& o, int in, int out,
                              int err) {
  if (!o.stdout_path.empty()) out = open(o.stdout_path.c_str(), O_WRONLY);
  dup2(in, STDIN_FILENO), dup2(out, STDOUT_FILENO), dup2(err, STDERR_FILENO);
  const rlimit limit{.rlim_cur = o.address_space, .rlim_max = o.address_space}, no_core{.rlim_cur = 0, .rlim_max = 0};
  if (o.address_space != RLIM_INFINITY) setrlimit(RLIMIT_AS, &limit);
  setrlimit(RLIMIT_CORE, &no_core);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

}  // namespace detail

inline ProcessResult run_process(const std::vector<std::string>& command, const ProcessOptions& o = {}) {
  std::FILE* input = detail::file_of(o.input);
  std::array<int, 2> terminal{-1, -1};
  if (o.on_terminal) terminal = detail::terminal_of(o.input);
  std::array<int, 2> out, err;
  if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) detail::exec(command, o, o.on_terminal ? terminal[0] : fileno(input), out[1], err[1]);
  std::fclose(input), close(out[1]), close(err[1]);

  ProcessResult result;
  std::array<pollfd, 2> ends{pollfd{.fd = out[0], .events = POLLIN, .revents = 0},
                             pollfd{.fd = err[0], .events = POLLIN, .revents = 0}};
  const auto begin = std::chrono::steady_clock::now(), deadline = begin + std::chrono::seconds(o.seconds);
  const auto alarm = begin + std::chrono::milliseconds(o.interrupt_after_ms);
  bool interrupt = o.interrupt_at_first_output, interrupt_later = o.interrupt_after_ms > 0;
  for (int open_ends = 2; open_ends > 0;) {
    poll(ends.data(), ends.size(), interrupt_later ? 10 : 100);
    const auto now = std::chrono::steady_clock::now();
    if (now > deadline) kill(child, SIGKILL);
    if (interrupt_later && now > alarm) kill(child, SIGINT), interrupt_later = false;
    for (size_t i = 0; i < ends.size(); i++) {
      if (ends[i].fd < 0 || !ends[i].revents) continue;
      std::array<char, 4096> buffer;
      const ssize_t got = read(ends[i].fd, buffer.data(), buffer.size());
      if (got > 0) {
        (i == 0 ? result.out : result.err).append(buffer.data(), static_cast<size_t>(got));
      } else {
        close(ends[i].fd), ends[i].fd = -1, open_ends--;
      }
    }
    if (interrupt && !result.out.empty()) kill(child, SIGINT), interrupt = false;
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (o.on_terminal) close(terminal[0]), close(terminal[1]);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return result;
}

}  // namespace deltaring::test
