// How far 8,192 tokens take each way of keeping a state from float64: docs/numerics.md is made of this program's lines.
// Ends with 1 if replay strays further than plain decoding may, if a schedule changes a bit that none may change, or if
// extreme inputs leave their tolerance.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>

#include "backends/tables.h"
#include "numerics/extremes.h"
#include "numerics/report.h"

namespace {

using namespace deltaring;
using namespace deltaring::numerics;
using Kind = Scheme::Kind;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// How much is run. The short form is a test: every kind of line, fewer of each.
struct Extent {
  int64_t count = 8192;
  std::vector<DType> records = {DType::bf16, DType::f16};
  std::vector<Schedule> schedules;
};

Extent extent(bool is_short) {
  if (is_short) return {2048, {DType::bf16}, {{1, true}, {8, false}, {16, true}}};
  Extent e;
  for (const bool all : {true, false})
    for (const int64_t T : {1, 4, 8, 16})
      if (all || T > 1) e.schedules.push_back({T, all});
  return e;
}

// 16, 32, 48, 64, 96, 128, 192, ...: multiples of 16, two to a doubling.
std::vector<int64_t> marks_up_to(int64_t count) {
  std::vector<int64_t> marks = {16};
  for (int64_t mark = 32; mark <= count; mark *= 2) {
    marks.push_back(mark);
    if (mark * 3 / 2 < count) marks.push_back(mark * 3 / 2);
  }
  return marks;
}

std::string name_of_schedule(const Schedule& s) {
  return fmt::format("T:{}/{}", s.T, s.all_accepted ? "all" : "random");
}

// One text and all schemes on it.
class Study {
 public:
  Study(DType activations, const Extent& extent, const OpTable& ops, Stream& stream, Report& report)
      : extent_(extent),
        ops_(ops),
        stream_(stream),
        report_(report),
        marks_(marks_up_to(extent.count)),
        activations_(activations),
        tokens_(text_like(extent.count, activations, ops, stream)),
        gate_(marks_) {
    const Clock clock;
    exact_ = exact(tokens_, marks_);
    report_.add(prefix() + "text", clock.seconds(), text_figures(), "float64");
  }

  // Plain decoding, by which the replay schemes are judged, and snapshots, which must equal it in every bit.
  void plain(DType state) {
    const Clock clock;
    const Scheme scheme{.kind = Kind::plain, .state = state};
    plain_ = follow(scheme, {});
    plain_errors_ = errors_of(plain_);
    add(scheme.name(), clock.seconds(), plain_errors_, Json::object());
  }
  void snapshots(DType state) {
    const Clock clock;
    int64_t different = 0;
    for (const Schedule& s : extent_.schedules)
      different += differing(plain_, follow({.kind = Kind::snapshots, .state = state}, s));
    bits(Scheme{.kind = Kind::snapshots, .state = state}.name(), clock.seconds(), extent_.schedules.size(), different);
  }

  // Under the grid: one line, since all schedules must have the same bits.
  void grid(const Scheme& scheme, const std::vector<Schedule>& schedules, bool gated) {
    const Clock clock;
    const Trajectory first = follow(scheme, schedules.front());
    int64_t different = 0;
    for (size_t i = 1; i < schedules.size(); i++) different += differing(first, follow(scheme, schedules[i]));
    const Errors e = errors_of(first);
    const double seconds = clock.seconds();
    add(scheme.name(), seconds, e, gated ? compared(scheme, e) : Json::object());
    if (schedules.size() > 1) bits(scheme.name() + "/schedules", seconds, schedules.size(), different);
  }
  void every(const Scheme& scheme, const Schedule& schedule) {
    const Clock clock;
    const Errors e = errors_of(follow(scheme, schedule));
    add(scheme.name() + "/" + name_of_schedule(schedule), clock.seconds(), e, compared(scheme, e));
  }

  bool passed() const { return gate_.report(report_) && same_bits_; }

 private:
  std::string prefix() const { return activations_ == DType::f32 ? "float32_activations/" : ""; }

  Trajectory follow(const Scheme& scheme, const Schedule& schedule) const {
    return run(scheme, schedule, tokens_, marks_, std::vector<float>(tokens_.shape.state()), ops_, stream_);
  }
  Errors errors_of(const Trajectory& t) const { return errors(t, exact_, tokens_, marks_); }

  Json compared(const Scheme& scheme, const Errors& e) {
    const char* policy = scheme.policy == FoldPolicy::grid ? "grid" : "every";
    return gate_.compare(fmt::format("{}{}/{}", prefix(), name_of(scheme.state), policy), e, plain_errors_);
  }

  void add(const std::string& name, double seconds, const Errors& e, const Json& ratios) {
    std::vector<double> state, out;
    for (const auto& heads : e.state) state.push_back(over_heads(heads));
    for (const auto& heads : e.out) out.push_back(over_heads(heads));
    Json figures = {{"state", short_numbers(state)},
                    {"output", short_numbers(out)},
                    {"state_by_head", short_numbers(e.state.back())},
                    {"output_by_head", short_numbers(e.out.back())}};
    figures.update(ratios);
    report_.add(prefix() + name, seconds, figures,
                fmt::format("state {:.2e}, output {:.2e}", state.back(), out.back()));
  }

  void bits(const std::string& name, double seconds, size_t schedules, int64_t different) {
    same_bits_ = same_bits_ && different == 0;
    report_.add(prefix() + name, seconds, {{"schedules", schedules}, {"differing_numbers", different}},
                fmt::format("{} schedules, {} differing numbers", schedules, different));
  }

  // The text: its gates, the largest numbers of v and of any state, what rounding an output to bfloat16 costs by
  // itself.
  Json text_figures() const {
    const int64_t Hv = tokens_.shape.Hv;
    std::vector<double> half_lives(Hv), betas(Hv);
    for (size_t i = 0; i < tokens_.g.size(); i++)
      half_lives[i % Hv] -= tokens_.g[i], betas[i % Hv] += tokens_.beta[i] / static_cast<double>(tokens_.count);
    for (double& sum : half_lives) sum = std::log(2) * static_cast<double>(tokens_.count) / sum;
    double largest = 0, error = 0, norm = 0;
    for (const auto& S : exact_.states)
      for (const double e : S) largest = std::max(largest, std::fabs(e));
    for (const double o : exact_.out) {
      const double difference = round_to(DType::bf16, static_cast<float>(o)) - o;
      error += difference * difference, norm += o * o;
    }
    return {{"at", marks_},
            {"half_life", short_numbers(half_lives)},
            {"mean_beta", short_numbers(betas)},
            {"largest_value",
             short_number(std::fabs(*std::ranges::max_element(tokens_.v, {}, [](float v) { return std::fabs(v); })))},
            {"largest_state", short_number(largest)},
            {"output_rounded_to_bfloat16", short_number(std::sqrt(error / norm))}};
  }

  const Extent& extent_;
  const OpTable& ops_;
  Stream& stream_;
  Report& report_;
  const std::vector<int64_t> marks_;
  const DType activations_;
  const Tokens tokens_;
  Exact exact_;
  Trajectory plain_;  // of the state dtype that is being studied
  Errors plain_errors_;
  Gate gate_;
  bool same_bits_ = true;
};

// bfloat16 activations, which records of 16 bits hold exactly or nearly so.
bool study_schemes(const Extent& extent, const OpTable& ops, Stream& stream, Report& report) {
  Study study(DType::bf16, extent, ops, stream, report);
  for (const DType state : kDTypes) {
    study.plain(state);
    study.snapshots(state);
    for (const DType record : extent.records) {
      Scheme scheme{.kind = Kind::replay, .state = state, .record = record};
      for (const int64_t F : {8, 16}) {
        scheme.F = F;
        study.grid(scheme, extent.schedules, true);
      }
      scheme.policy = FoldPolicy::every;
      for (const Schedule& schedule : extent.schedules) study.every(scheme, schedule);
    }
  }
  return study.passed();
}

// float32 activations, where a record of 16 bits is one rounding more: no gate for those.
bool study_records(const Extent& extent, const OpTable& ops, Stream& stream, Report& report) {
  Study study(DType::f32, extent, ops, stream, report);
  for (const DType state : kDTypes) {
    study.plain(state);
    for (const DType record : kDTypes)
      study.grid({.kind = Kind::replay, .state = state, .F = 16, .record = record}, {{8, true}}, record == DType::f32);
  }
  return study.passed();
}

bool study_extremes(const OpTable& ops, Stream& stream, Report& report) {
  double worst = 0;
  for (const Keys keys : kAllKeys) {
    for (const DType state : kDTypes) {
      const Clock clock;
      const Scheme scheme{.kind = Kind::replay, .state = state, .F = 16, .record = DType::bf16};
      const Extremes e = run_extremes(scheme, keys, ops, stream);
      const double state_share = std::ranges::max(e.state), out_share = std::ranges::max(e.out);
      worst = std::max({worst, state_share, out_share});
      report.add(fmt::format("extremes/keys:{}/{}", numerics::name_of(keys), name_of(state)), clock.seconds(),
                 {{"gates", {"0", "-1e-7", "-20", "-80", "mixed"}},
                  {"betas", {"0", "1", "mixed"}},
                  {"state_over_tolerance", short_numbers(e.state)},
                  {"output_over_tolerance", short_numbers(e.out)}},
                 fmt::format("of the tolerance: state {:.3f}, output {:.3f}", state_share, out_share));
    }
  }
  return worst <= 1;
}

void study_forgetting(const OpTable& ops, Stream& stream, Report& report) {
  for (const DType state : kDTypes) {
    std::vector<Scheme> schemes = {{.kind = Kind::plain, .state = state}};
    for (const int64_t F : {8, 16}) schemes.push_back({.kind = Kind::replay, .state = state, .F = F});
    for (const Scheme& scheme : schemes) {
      const Clock clock;
      const std::vector<double> left = left_after_half_life(scheme, ops, stream);
      report.add("forgetting/" + scheme.name(), clock.seconds(), {{"half_life", kQuiet}, {"left", short_numbers(left)}},
                 fmt::format("left after a half-life: {:.3f}", fmt::join(left, " ")));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Errors of recurrent states against float64 over 8,192 tokens.");
  bool is_short = false;
  std::string out, format = "json";
  app.add_flag("--short", is_short, "2,048 tokens and fewer schemes, as a test");
  app.add_option("--benchmark_out", out, "result file, in Google Benchmark's form");
  app.add_option("--benchmark_out_format", format, "json")->check(CLI::IsMember({"json"}));
  CLI11_PARSE(app, argc, argv);
  try {
    const OpTable& ops = backend("cpu");
    const auto stream = ops.make_stream(1);
    const Extent how_much = extent(is_short);
    Report report;
    bool passed = study_schemes(how_much, ops, *stream, report);
    passed = study_records(how_much, ops, *stream, report) && passed;
    passed = study_extremes(ops, *stream, report) && passed;
    study_forgetting(ops, *stream, report);
    if (!out.empty()) report.write(out);
    if (!passed) std::cerr << "numerics: failed, see the lines above\n";
    return passed ? 0 : 1;
  } catch (const std::exception& e) {
    std::cerr << "numerics: " << e.what() << '\n';
    return 2;
  }
}
