// Random speculative schedules against plain decoding: the same tokens and the same bits of every logit.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>

#include "draft/mtp.h"
#include "draft/ngram.h"
#include "support/rig.h"
#include "support/scripted.h"

namespace deltaring::test {

struct Plain {
  std::vector<int32_t> tokens;             // prompt and output
  std::vector<std::vector<float>> logits;  // behind each output token's predecessor
  size_t prompt = 0;                       // tokens of it
};

inline Plain decode_plain(const Weights& weights, RigOptions o, const std::vector<int32_t>& prompt, int64_t output) {
  o.seats = 1, o.T = 1, o.R = 0, o.block.reset();
  Rig rig(weights, o);
  Sequence s = rig.start(prompt);
  Plain plain{.tokens = {}, .logits = {}, .prompt = prompt.size()};
  const auto keep = [&] {
    plain.logits.emplace_back(rig.stepper->logits().f32(0),
                              rig.stepper->logits().f32(0) + rig.model.config().vocab_size);
  };
  keep();
  while (static_cast<int64_t>(s.tokens.size() - prompt.size()) < output) rig.step(s), keep();
  plain.tokens = s.tokens;
  return plain;
}

// What the last step emitted for a sequence whose rows start at `row` of the logits: "", or what plain decoding has
// not.
inline std::string difference(const Rig& rig, const Sequence& s, int64_t row, const Plain& plain) {
  const size_t before = s.tokens.size() - static_cast<size_t>(s.emitted);
  for (size_t j = 0; j < static_cast<size_t>(s.emitted); j++) {
    if (s.tokens[before + j] != plain.tokens[before + j]) return "token " + std::to_string(before + j);
    const std::vector<float>& want = plain.logits[before + j - plain.prompt];
    const float* got = rig.stepper->logits().f32(row + static_cast<int64_t>(j));
    if (std::memcmp(got, want.data(), want.size() * sizeof(float)) != 0)
      return "logits behind token " + std::to_string(before + j - 1);
  }
  return "";
}

// One step of all rows; "" or what differs from plain decoding.
inline std::string step_and_compare(Rig& rig, const std::vector<Sequence*>& rows,
                                    const std::vector<const Plain*>& plains) {
  rig.stepper->step(rows);
  int64_t row = 0;
  for (size_t b = 0; b < rows.size(); b++) {
    const std::string what = difference(rig, *rows[b], row, *plains[b]);
    if (!what.empty()) return what + " of row " + std::to_string(b);
    row += rig.stepper->rows_of(b);
  }
  return "";
}

// A drafter that works alongside the script.
using MakeDrafter = std::function<std::unique_ptr<Drafter>(Rig&)>;

// Several requests in one batch, each with its own plain oracle; rows join, leave and come back in other seats. Returns
// "" or what differed.
inline std::string run_schedule(const Weights& weights, RigOptions o, uint64_t seed, int64_t output,
                                const MakeDrafter& make = {}) {
  std::mt19937_64 rng(seed);
  const auto draw = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  const int64_t vocab = weights.config.vocab_size;
  o.prefill_chunk = 64 * (1 + draw(2));
  Rig rig(weights, o);
  ScriptedDrafter drafter(seed, vocab);
  const std::unique_ptr<Drafter> inner = make ? make(rig) : nullptr;
  std::optional<Overruled> both;
  if (inner) both.emplace(*inner, drafter);
  rig.use(both ? static_cast<Drafter*>(&*both) : &drafter);
  for (int round = 0; round < 2; round++) {
    std::vector<Sequence> sequences;
    std::vector<Plain> oracles;
    std::vector<size_t> prompt_sizes;
    for (int64_t b = 0; b < o.seats; b++) {
      std::vector<int32_t> prompt(1 + draw(90));
      for (int32_t& id : prompt) id = static_cast<int32_t>(draw(vocab));
      oracles.push_back(decode_plain(weights, o, prompt, output));
      prompt_sizes.push_back(prompt.size());
      sequences.push_back(rig.start(prompt));
      drafter.truth(sequences.back().seat, oracles.back().tokens);
    }
    while (true) {
      std::vector<Sequence*> rows;
      std::vector<size_t> row_of;
      for (size_t b = 0; b < sequences.size(); b++) {
        sequences[b].max_drafts = static_cast<int32_t>(draw(o.T));
        const bool done = static_cast<int64_t>(sequences[b].tokens.size() - prompt_sizes[b]) + o.T > output;
        if (!done && draw(4) != 0) rows.push_back(&sequences[b]), row_of.push_back(b);
      }
      const bool all_done = std::all_of(sequences.begin(), sequences.end(), [&](const Sequence& s) {
        return static_cast<int64_t>(s.tokens.size() - prompt_sizes[&s - sequences.data()]) + o.T > output;
      });
      if (all_done) break;
      if (rows.empty()) continue;
      std::vector<const Plain*> plains;
      for (const size_t b : row_of) plains.push_back(&oracles[b]);
      const std::string what = step_and_compare(rig, rows, plains);
      if (!what.empty()) return what;
    }
    std::shuffle(sequences.begin(), sequences.end(), rng);
    for (const Sequence& s : sequences) rig.pool.free(s.seat);
  }
  return "";
}

// A schedule's geometry and dtypes, drawn from its seed.
inline RigOptions schedule_options(uint64_t seed) {
  std::mt19937_64 rng(seed * 2654435761u + 1);
  RigOptions o;
  o.seats = 1 + static_cast<int64_t>(rng() % 3);
  o.T = 1 + static_cast<int64_t>(rng() % 16);
  o.F = rng() % 2 ? 8 : 16;
  o.checkpoint = std::array{DType::f32, DType::bf16, DType::f16}[rng() % 3];
  o.kv = std::array{DType::f32, DType::bf16}[rng() % 2];
  o.context = 192;
  return o;
}

// A request that n-grams draft for, and one that the MTP head drafts for, against plain decoding.
inline void expect_drafters_change_nothing(const Weights& weights, const RigOptions& o, size_t length) {
  const std::vector<int32_t> prompt{1, 2, 3, 1, 2, 3, 1, 2};
  const Plain plain = decode_plain(weights, o, prompt, static_cast<int64_t>(length));
  for (const bool mtp : {false, true}) {
    Rig rig(weights, o);
    std::unique_ptr<Drafter> drafter = std::make_unique<NgramDrafter>();
    if (mtp) drafter = std::make_unique<MtpDrafter>(rig.model, rig.pool, 48);
    rig.use(drafter.get());
    Sequence s = rig.start(prompt);
    while (s.tokens.size() < length) {
      s.max_drafts = 4;
      ASSERT_EQ(step_and_compare(rig, {&s}, {&plain}), "") << drafter->name();
    }
    EXPECT_GT(rig.stepper->stats().drafted, 0);
  }
}

}  // namespace deltaring::test
