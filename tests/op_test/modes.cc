#include "op_test/modes.h"

#include "base/error.h"
#include "roofline.h"

namespace deltaring::op_test {

namespace {

struct Entry {
  const char* op;
  bool (*has)(const OpTable&);
  std::unique_ptr<Job> (*make)(const Case&, const Machine&, uint64_t seed);
};

constexpr Entry kEntries[] = {
    {"gdn_gates", [](const OpTable& t) { return t.gdn_gates != nullptr; }, make_gates_job},
    {"gdn_verify", [](const OpTable& t) { return t.gdn_verify != nullptr; }, make_gdn_job},
    {"gdn_prefill", [](const OpTable& t) { return t.gdn_prefill != nullptr; }, make_gdn_job},
    {"gdn_fold", [](const OpTable& t) { return t.gdn_fold != nullptr; }, make_gdn_job},
    {"conv", [](const OpTable& t) { return t.conv != nullptr; }, make_conv_job},
    {"snapshot_verify", [](const OpTable& t) { return t.snapshot_verify != nullptr; }, make_snapshot_verify_job},
    {"snapshot_commit", [](const OpTable& t) { return t.snapshot_commit != nullptr; }, make_snapshot_commit_job},
    {"seat_copy", [](const OpTable& t) { return t.seat_copy != nullptr; }, make_seat_copy_job},
    {"seat_pack", [](const OpTable& t) { return t.seat_pack != nullptr; }, make_seat_pack_job},
    {"seat_unpack", [](const OpTable& t) { return t.seat_unpack != nullptr; }, make_seat_pack_job},
    {"linear", [](const OpTable& t) { return t.linear != nullptr; }, make_linear_job},
    {"moe_route", [](const OpTable& t) { return t.moe_route != nullptr; }, make_moe_route_job},
    {"moe_experts", [](const OpTable& t) { return t.moe_experts != nullptr; }, make_moe_experts_job},
};

const Entry& entry_of(const Case& c) {
  for (const Entry& entry : kEntries)
    if (c.is(entry.op)) return entry;
  fail(ErrorKind::invalid_argument, "the case '{}' names no op", c.name());
}

// A case made and ready to be called, and what it runs on.
struct Setup {
  std::unique_ptr<Stream> stream;
  Machine machine;
  std::unique_ptr<Job> job;

  Setup(const Case& c, const OpTable& table, const Options& options)
      : stream(table.make_stream(options.threads)),
        machine{table, *stream, replay::Device(table)},
        job(entry_of(c).make(c, machine, options.seed)) {}
  void call(int64_t times = 1) {
    for (int64_t i = 0; i < times; i++) job->call();
    machine.device.wait(*stream);
  }
};

// Why the backend does not take the case, or nothing. Calls it once.
std::optional<std::string> refusal(const Case& c, const OpTable& table, const Options& options,
                                   std::optional<Setup>& setup) {
  if (!table.make_stream || !entry_of(c).has(table)) return fmt::format("no {}", c.op);
  try {
    setup.emplace(c, table, options);
    setup->call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

Outcome unsupported(const std::string& why) {
  return {Status::unsupported, "unsupported: " + why, {{"status", "unsupported"}, {"why", why}}};
}

// Bytes per second of plain reads with as many threads, of memory as large as what the case moves.
double read_rate(int64_t bytes, int threads, int rounds) {
  constexpr int64_t kPiece = 1 << 16;
  const int64_t size = (bytes + kPiece - 1) / kPiece * kPiece;
  const std::vector<std::byte> memory(size, std::byte{1});
  ThreadPool pool(threads);
  volatile uint64_t sink = 0;
  const auto repeat = std::max<int64_t>(1, (1 << 22) / size);
  const double seconds = bench::median_seconds(rounds, [&] {
    for (int64_t i = 0; i < repeat; i++) sink = bench::read_all(pool, memory.data(), size);
  });
  return static_cast<double>(size * repeat) / seconds;
}

// The same of a device: a copy reads half of what the case moves and writes the other half.
double copy_rate(const Machine& machine, int64_t bytes, int rounds) {
  constexpr int64_t kRepeat = 50;
  const auto half = static_cast<size_t>(bytes + 1) / 2;
  const auto from = machine.device.allocate(half), to = machine.device.allocate(half);
  const double seconds = bench::median_seconds(rounds, [&] {
    for (int64_t i = 0; i < kRepeat; i++)
      machine.table.memory->copy(to->device(), from->device(), half, half, 1, machine.stream);
    machine.device.wait(machine.stream);
  });
  return static_cast<double>(2 * half * kRepeat) / seconds;
}

}  // namespace

Outcome test(const Case& c, const OpTable& table, const Options& options) {
  std::optional<Setup> setup;
  if (const auto why = refusal(c, table, options, setup)) return unsupported(*why);
  Failures failures;
  setup->job->judge(failures);
  if (failures.empty()) {
    Outcome ok{Status::ok, "ok", {{"status", "ok"}}};
    const auto tell = [&](const char* what, const RelativeError& error) {
      if (const auto value = error.value())
        ok.text += fmt::format(", {} error {:.1e}", what, *value), ok.json[fmt::format("{}_error", what)] = *value;
    };
    tell("out", setup->job->out_error()), tell("state", setup->job->state_error());
    return ok;
  }
  const std::string command =
      fmt::format("op_test --op {} --backend {} --mode test --seed {} --threads {} --filter '{}'", c.op, table.name,
                  options.seed, options.threads, c.name());
  std::string text = fmt::format("FAILED, to see it again: {}", command);
  for (size_t i = 0; i < std::min<size_t>(failures.size(), 3); i++) text += "\n  " + failures[i];
  if (failures.size() > 3) text += fmt::format("\n  and {} more", failures.size() - 3);
  return {Status::failed, text, {{"status", "failed"}, {"failures", failures}, {"command", command}}};
}

Outcome measure(const Case& c, const OpTable& table, const Options& options) {
  std::optional<Setup> setup;
  if (const auto why = refusal(c, table, options, setup)) return unsupported(*why);
  const double once = bench::median_seconds(3, [&] { setup->call(); });
  const auto repeat = static_cast<int64_t>(std::clamp(1e-3 / std::max(once, 1e-9), 1.0, 1e4));
  const double seconds =
      bench::median_seconds(options.rounds, [&] { setup->call(repeat); }) / static_cast<double>(repeat);
  const int64_t bytes = setup->job->bytes();
  const double rate = static_cast<double>(bytes) / seconds;
  const bool on_host = table.memory == nullptr;
  const double share = bytes == 0 ? 0
                       : on_host  ? rate / read_rate(bytes, options.threads, options.rounds)
                                  : rate / copy_rate(setup->machine, bytes, options.rounds);
  return {Status::ok,
          fmt::format("{:9.2f} us {:11} bytes {:7.2f} GB/s {:5.1f}% of a plain {}", seconds * 1e6, bytes, rate * 1e-9,
                      share * 100, on_host ? "read" : "copy"),
          {{"status", "ok"}, {"us", seconds * 1e6}, {"bytes", bytes}, {"GB/s", rate * 1e-9}, {"share_of_read", share}}};
}

Outcome support(const Case& c, const OpTable& table, const Options& options) {
  std::optional<Setup> setup;
  if (const auto why = refusal(c, table, options, setup)) return unsupported(*why);
  return {Status::ok, "supported", {{"status", "supported"}}};
}

}  // namespace deltaring::op_test
