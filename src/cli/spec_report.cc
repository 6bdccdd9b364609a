#include "cli/spec_report.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"

namespace deltaring::cli {

namespace {

using nlohmann::json;

double ratio(double a, double b) { return b > 0 ? a / b : 0; }
double ratio(int64_t a, int64_t b) { return ratio(static_cast<double>(a), static_cast<double>(b)); }

void add_to(std::vector<int64_t>& sum, const std::vector<int64_t>& counts) {
  sum.resize(std::max(sum.size(), counts.size()));
  for (size_t i = 0; i < counts.size(); i++) sum[i] += counts[i];
}

json json_of(const SpecTally& t, int64_t concurrency) {
  return {{"requests", t.requests},
          {"completion_tokens", t.completion_tokens},
          {"verify_steps", t.steps},
          {"step_tokens", t.step_tokens},
          {"drafted", t.drafted},
          {"accepted", t.accepted},
          {"acceptance_length", t.pooled_length()},
          {"acceptance_length_request_mean", t.mean_request_length()},
          {"acceptance_rate", t.acceptance_rate()},
          {"per_position_acceptance_rates", t.acceptance_at()},
          {"drafted_per_position", t.drafted_at},
          {"accepted_per_position", t.accepted_at},
          {"steps_per_second", t.step_rate() * static_cast<double>(concurrency)},
          {"decode_tokens_per_second", t.decode_rate() * static_cast<double>(concurrency)}};
}

std::string row(const std::string& drafter, const std::string& category, const SpecTally& t, int64_t concurrency) {
  std::string positions;
  for (const double rate : t.acceptance_at()) positions += fmt::format(" {:3.0f}", 100 * rate);
  return fmt::format("{:<10} {:<16} {:>8} {:>8} {:>8.2f} {:>8.2f} {:>8.1f} {:>9.1f}  {}\n", drafter, category,
                     t.requests, t.completion_tokens, t.pooled_length(), t.mean_request_length(),
                     t.step_rate() * static_cast<double>(concurrency),
                     t.decode_rate() * static_cast<double>(concurrency), positions);
}

}  // namespace

void SpecTally::add(const GenerateResult& r) {
  requests++;
  completion_tokens += static_cast<int64_t>(r.tokens.size());
  steps += r.verify_steps, step_tokens += r.step_tokens, drafted += r.drafted, accepted += r.accepted;
  add_to(drafted_at, r.drafted_at);
  add_to(accepted_at, r.accepted_at);
  if (r.verify_steps == 0) return;
  requests_with_steps++;
  request_lengths += ratio(r.step_tokens, r.verify_steps);
  request_rates += ratio(static_cast<double>(r.tokens.size()) - 1, r.decode_seconds);
}

void SpecTally::add(const SpecTally& o) {
  requests += o.requests, completion_tokens += o.completion_tokens;
  steps += o.steps, step_tokens += o.step_tokens, drafted += o.drafted, accepted += o.accepted;
  add_to(drafted_at, o.drafted_at);
  add_to(accepted_at, o.accepted_at);
  requests_with_steps += o.requests_with_steps;
  request_lengths += o.request_lengths, request_rates += o.request_rates;
}

double SpecTally::pooled_length() const { return ratio(step_tokens, steps); }
double SpecTally::mean_request_length() const {
  return ratio(request_lengths, static_cast<double>(requests_with_steps));
}
double SpecTally::acceptance_rate() const { return ratio(accepted, drafted); }
double SpecTally::decode_rate() const { return ratio(request_rates, static_cast<double>(requests_with_steps)); }
double SpecTally::step_rate() const { return ratio(decode_rate(), pooled_length()); }

std::vector<double> SpecTally::acceptance_at() const {
  std::vector<double> rates;
  for (size_t i = 0; i < drafted_at.size(); i++) rates.push_back(ratio(accepted_at[i], drafted_at[i]));
  return rates;
}

SpecTally SpecRun::overall() const {
  SpecTally sum;
  for (const auto& [name, tally] : categories) sum.add(tally);
  return sum;
}

int64_t SpecReport::requests() const {
  int64_t sum = 0;
  for (const SpecRun& run : runs) sum += run.overall().requests;
  return sum;
}

std::string table(const SpecReport& report) {
  std::string windows;
  for (const SpecRun& run : report.runs) {
    windows += fmt::format("{}{} T={}", windows.empty() ? "" : ", ", run.drafter, run.info.T);
  }
  const GenerateOptions& o = report.options;
  std::string text =
      fmt::format("{} on {}: {}, {} tokens at most{}{}, one request at a time; {} (T-1 drafts a step)\n", report.model,
                  report.prompts, describe_sampling(o), o.max_tokens, o.ignore_eos ? ", end tokens ignored" : "",
                  report.chat ? ", prompts as user turns" : "", windows);
  text += fmt::format("{:<10} {:<16} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9}   {}\n", "drafter", "category", "requests",
                      "tokens", "length", "mean", "steps/s", "tok/s", "% of drafts accepted, by position");
  for (const SpecRun& run : report.runs) {
    for (const auto& [category, tally] : run.categories) text += row(run.drafter, category, tally, report.concurrency);
    if (run.categories.size() > 1) text += row(run.drafter, "overall", run.overall(), report.concurrency);
  }
  text +=
      "length: tokens a verify step, over all steps; mean: the same per request, then averaged; the prefill's token "
      "is in neither\n";
  if (report.interrupted) {
    text += fmt::format("interrupted: {} of {} requests were through and are in the table\n", report.requests(),
                        report.planned);
  }
  return text;
}

std::string to_json(const SpecReport& report) {
  const GenerateOptions& o = report.options;
  json logit_bias = json::object();
  for (const auto& [id, bias] : o.logit_bias) logit_bias[std::to_string(id)] = bias;
  json out = {{"model", report.model},
              {"prompts", report.prompts},
              {"concurrency", report.concurrency},
              {"max_tokens", o.max_tokens},
              {"temperature", o.temperature},
              {"top_p", o.top_p},
              {"top_k", o.top_k},
              {"min_p", o.min_p},
              {"repetition_penalty", o.repetition_penalty},
              {"presence_penalty", o.presence_penalty},
              {"frequency_penalty", o.frequency_penalty},
              {"logit_bias", logit_bias},
              {"seed", o.seed},
              {"ignore_eos", o.ignore_eos},
              {"chat", report.chat},
              {"interrupted", report.interrupted},
              {"runs", json::array()}};
  for (const SpecRun& run : report.runs) {
    json categories = json::object();
    for (const auto& [name, tally] : run.categories) categories[name] = json_of(tally, report.concurrency);
    out["runs"].push_back({{"drafter", run.drafter},
                           {"T", run.info.T},
                           {"R", run.info.R},
                           {"F", run.info.F},
                           {"ragged_verify_mode", run.info.ragged_verify_mode},
                           {"state_rollback", run.info.state_rollback},
                           {"threads", run.info.threads},
                           {"overall", json_of(run.overall(), report.concurrency)},
                           {"categories", categories}});
  }
  return out.dump(1);
}

}  // namespace deltaring::cli
