// Whether adaptive windows ever lose: the tiny model with 1 to 32 requests at once, every drafter against none, in turn
// in one run, as ratios of tokens a second of one thread's own time, which other programs on the machine change little.
// times_none is the median of the slices and times_none_q1 and _q3 are their quartiles: what is between them is noise,
// of which the median has a fifth. `idle` wants no drafts at all: what only having a drafter costs a step.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backends/tables.h"
#include "draft/block_drafter.h"
#include "draft/mtp.h"
#include "draft/ngram.h"
#include "roofline.h"
#include "spec/step.h"

namespace {

using namespace deltaring;
constexpr int64_t kRoom = 512, kChunk = 256;  // tokens of a request, of a prefill pass
constexpr int kSlices = 25;
constexpr double kSlice = 0.1;  // seconds that each of the two decodes before it is the other's turn

const std::filesystem::path kModels = DELTARING_SOURCE_DIR "/models";

const std::vector<std::vector<int32_t>>& prompts() {
  static const std::vector<std::vector<int32_t>> all = [] {
    std::vector<std::vector<int32_t>> ids;
    const auto file = nlohmann::json::parse(std::ifstream(DELTARING_SOURCE_DIR "/bench/prompts/held_out.json"));
    for (const auto& prompt : file["prompts"]) ids.push_back(prompt["ids"]);
    return ids;
  }();
  return all;
}

// Of the calling thread.
double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Case {
  std::string drafter;  // none, ngram, eagle, or a folder in models/
  int64_t requests;
  float temperature;
  bool idle;  // asks for no drafts instead of as many as pay
};

// Decodes prompt after prompt, `requests` at once, for as long as it is asked to.
class Decoding {
 public:
  explicit Decoding(const Case& c) : case_(c), ops_(backend("cpu")), stream_(ops_.make_stream(1)) {
    const std::filesystem::path folder = kModels / "tiny-py";
    Weights weights = load_weights(folder, load_model_config(folder));
    std::optional<BlockWeights> block;
    if (std::filesystem::exists(kModels / c.drafter)) {
      BlockConfig config = load_block_config(kModels / c.drafter);
      fit_to_target(config, weights.config);
      block = load_block_weights(kModels / c.drafter, config);
    }
    const int64_t T = c.drafter == "none" ? 1 : c.drafter == "eagle" ? 4 : 8;
    model_.emplace(std::move(weights), ops_, *stream_, std::max(kChunk, c.requests * T));
    StateShape shape = model_->state_shape();
    if (block) add_draft_kv(shape, block->config);
    pool_.emplace(shape, StateOptions{.seats = c.requests,
                                      .kv_tokens = c.requests * (kRoom + 64),
                                      .ring = {.T = T, .F = 8, .R = default_ring_rows(T, 8, FoldPolicy::grid)}});
    const int64_t vocab = model_->config().vocab_size;
    if (c.drafter == "ngram") drafter_ = std::make_unique<NgramDrafter>();
    if (c.drafter == "eagle") drafter_ = std::make_unique<MtpDrafter>(*model_, *pool_, vocab);
    if (block) drafter_ = make_block_drafter(std::move(*block), *model_, *pool_, vocab);
    stepper_.emplace(*model_, *pool_, drafter_.get(), kChunk, vocab, VerifyOptions{.adaptive = drafter_ && !c.idle});
    for (int64_t i = 0; i < c.requests; i++) next(requests_.emplace_back());
    stepper_->reset_stats();
  }

  // Tokens a second of at least kSlice seconds of steps; what begins a request is left out.
  double slice() {
    double seconds = 0;
    int64_t tokens = 0;
    while (seconds < kSlice) {
      std::vector<Sequence*> rows;
      for (Sequence& s : requests_) {
        s.max_drafts = case_.idle ? -1 : static_cast<int32_t>(pool_->options().ring.T - 1);
        rows.push_back(&s);
      }
      const double begin = cpu_seconds();
      stepper_->step(rows);
      seconds += cpu_seconds() - begin;
      for (Sequence& s : requests_) {
        tokens += s.emitted;
        if (static_cast<int64_t>(s.tokens.size()) >= kRoom) next(s);
      }
    }
    return static_cast<double>(tokens) / seconds;
  }

  const SpecStats& stats() const { return stepper_->stats(); }

 private:
  void next(Sequence& s) {
    if (s.seat >= 0) pool_->free(s.seat);
    const auto& prompt = prompts()[static_cast<size_t>(prompt_++) % prompts().size()];
    s = {.seat = pool_->allocate(),
         .tokens = prompt,
         .sampling = {.temperature = case_.temperature},
         .seed = static_cast<uint64_t>(prompt_)};
    pool_->reserve(s.seat, kRoom + 64);
    stepper_->prefill(s);
  }

  const Case case_;
  const OpTable& ops_;
  std::unique_ptr<Stream> stream_;
  std::optional<HybridModel> model_;
  std::optional<StatePool> pool_;
  std::unique_ptr<Drafter> drafter_;
  std::optional<SpecStepper> stepper_;
  std::vector<Sequence> requests_;
  int64_t prompt_ = 0;
};

void adaptive(benchmark::State& state, const Case& c) {
  std::vector<double> ratios, rates, plain_rates;
  SpecStats stats;
  for (auto _ : state) {
    Case off = c;
    off.drafter = "none";
    Decoding with(c), without(off);
    for (int i = 0; i < kSlices; i++) {
      // Who goes first changes, so that a machine that grows busier slows both.
      const bool first = i % 2 == 0;
      double rate = first ? with.slice() : 0;
      const double plain = without.slice();
      if (!first) rate = with.slice();
      if (i == 0) continue;
      rates.push_back(rate), plain_rates.push_back(plain), ratios.push_back(rate / plain);
    }
    stats = with.stats();
  }
  const double ratio = bench::median(ratios);
  std::sort(ratios.begin(), ratios.end());
  state.counters["times_none"] = ratio;
  state.counters["times_none_q1"] = ratios[ratios.size() / 4];
  state.counters["times_none_q3"] = ratios[ratios.size() * 3 / 4];
  state.counters["tok/s"] = bench::median(rates);
  state.counters["none_tok/s"] = bench::median(plain_rates);
  state.counters["drafts_a_step"] = static_cast<double>(stats.drafted) / static_cast<double>(stats.steps);
  state.counters["tokens_a_step"] = stats.acceptance_length();
  if (ratio < 0.97) fmt::print(stderr, "loss of {:.1f} %: ", 100 * (1 - ratio));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Case> cases;
  for (const char* drafter : {"ngram", "eagle", "tiny-py-dflash", "tiny-py-dspark"}) {
    for (const int64_t requests : {1, 2, 4, 8, 16, 32}) {
      cases.push_back({drafter, requests, 0, false});
      cases.push_back({drafter, requests, 1, false});
      cases.push_back({drafter, requests, 0, true});
    }
  }
  for (const Case& c : cases) {
    const std::string name = c.idle
                                 ? fmt::format("{}/requests:{}/idle", c.drafter, c.requests)
                                 : fmt::format("{}/requests:{}/temperature:{:g}", c.drafter, c.requests, c.temperature);
    benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { adaptive(state, c); })
        ->Iterations(1)
        ->Unit(benchmark::kSecond)
        ->UseRealTime();
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
