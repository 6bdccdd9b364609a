// op_test under test: what it must catch, what it says, and that its table is sound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "op_test/modes.h"
#include "ops/mutant_hosts.h"
#include "ops/mutant_kinds.h"
#include "ops/mutant_snapshots.h"

namespace deltaring::op_test {
namespace {

using ::testing::HasSubstr;
namespace mutant = replay::mutant;

std::vector<Case> cases_of(std::string_view op) {
  std::vector<Case> cases;
  for (const Case& c : all_cases())
    if (c.is(op)) cases.push_back(c);
  return cases;
}

TEST(OpTest, NamesAreUnique) {
  std::set<std::string> names;
  for (const Case& c : all_cases()) EXPECT_TRUE(names.insert(c.name()).second) << c.name();
}

struct Fault {
  const char* name;
  const char* op;
  void (*inject)(OpTable&);
};

// A record, an output or a state is written where none belongs, or is not written.
void past_the_outputs(const GdnVerifyArgs& a, Stream& s) {
  mutant::base().gdn_verify(a, s);
  if (a.out.shape[0] > 0) *a.out.f32(a.out.shape[0] - 1, a.out.shape[1] - 1, a.out.shape[2]) = 0;
}
void into_the_inputs(const GdnVerifyArgs& a, Stream& s) {
  mutant::base().gdn_verify(a, s);
  if (a.k.shape[0] > 0) *a.k.f32(0) += 1;
}
void one_tap_missing(const ConvArgs& a, Stream& s) {
  mutant::base().conv(a, s);
  if (a.rows.count > 0 && a.rows.length(0) > 0 && a.rows.seat[0] >= 0) *a.out.f32(0, a.out.shape[1] - 1) += 1e-4f;
}
void softplus_linear_above_10(const GdnGatesArgs& a, Stream& s) {
  mutant::base().gdn_gates(a, s);
  const auto [tokens, Hv, G] = a.a.shape;
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t i = 0; i < Hv * G; i++) {
      const float x = *a.a.f32(t, i / G, i % G) + a.dt_bias[i];
      if (x > 5) *a.g.f32(t, i / G, i % G) = -std::exp(a.A_log[i / G]) * x;
    }
}
void fold_everything(const GdnFoldArgs& a, Stream& s) {
  GdnFoldArgs more = a;
  more.rows.fold_to = a.rows.first, more.grain = 0;
  mutant::base().gdn_fold(more, s);
}
void copies_all_tensors_but_one(const SeatCopyArgs& a, Stream& s) {
  SeatCopyArgs fewer = a;
  fewer.tensors = a.tensors.first(a.tensors.size() - 1);
  mutant::base().seat_copy(fewer, s);
}
void copies_the_other_way(const SeatCopyArgs& a, Stream& s) {
  SeatCopyArgs back = a;
  std::swap(back.from, back.to);
  mutant::base().seat_copy(back, s);
}
template <void (*OpTable::*op)(const SeatPackArgs&, Stream&)>
void packs_one_position_late(const SeatPackArgs& a, Stream& s) {
  SeatPackArgs late = a;
  late.cursor.folded++, late.cursor.pos++;
  (mutant::base().*op)(late, s);
}
void unpacks_into_another_seat(const SeatPackArgs& a, Stream& s) {
  SeatPackArgs other = a;
  other.seat = 0;
  mutant::base().seat_unpack(other, s);
}

template <void (*fault)(const GdnVerifyArgs&, Stream&, bool)>
void verify(OpTable& t) {
  t.gdn_verify = [](const GdnVerifyArgs& a, Stream& s) { fault(a, s, false); };
}
template <void (*fault)(const GdnVerifyArgs&, Stream&, bool)>
void prefill(OpTable& t) {
  t.gdn_prefill = [](const GdnVerifyArgs& a, Stream& s) { fault(a, s, true); };
}

std::vector<Fault> faults() {
  using namespace mutant;
  return {
      {"no_decay", "gdn_verify", verify<no_decay>},
      {"no_decay_in_replay", "gdn_verify", verify<no_decay_in_replay>},
      {"one_channel_never_decays", "gdn_verify", verify<one_channel_never_decays>},
      {"channel_gates_read_as_one", "gdn_verify", verify<channel_gates_read_as_one>},
      {"q_norm_skipped", "gdn_verify", verify<q_norm_skipped>},
      {"scale_ignored", "gdn_verify", verify<scale_ignored>},
      {"records_rounded_late", "gdn_verify", verify<records_rounded_late>},
      {"checkpoint_not_rounded_in_passing", "gdn_verify", verify<checkpoint_not_rounded_in_passing>},
      {"rounded_one_token_late", "gdn_verify", verify<rounded_one_token_late>},
      {"checkpoint_one_token_late", "gdn_verify", verify<checkpoint_one_token_late>},
      {"cursor_moves_without_fold", "gdn_verify", verify<cursor_moves_without_fold>},
      {"seats_of_two_rows_swapped", "gdn_verify", verify<seats_of_two_rows_swapped>},
      {"padding_left_as_it_was", "gdn_verify", verify<padding_left_as_it_was>},
      {"ragged_offsets_taken_as_dense", "gdn_verify", verify<ragged_offsets_taken_as_dense>},
      {"writes_one_record_past_the_window", "gdn_verify", verify<writes_one_record_past_the_window>},
      {"writes_a_foreign_seat", "gdn_verify", verify<writes_a_foreign_seat>},
      {"past_the_outputs", "gdn_verify", [](OpTable& t) { t.gdn_verify = past_the_outputs; }},
      {"into_the_inputs", "gdn_verify", [](OpTable& t) { t.gdn_verify = into_the_inputs; }},
      {"prefill_not_rounded_in_passing", "gdn_prefill", prefill<checkpoint_not_rounded_in_passing>},
      {"prefill_writes_a_foreign_seat", "gdn_prefill", prefill<writes_a_foreign_seat>},
      {"fold_does_nothing", "gdn_fold", [](OpTable& t) { t.gdn_fold = fold_does_nothing; }},
      {"fold_everything", "gdn_fold", [](OpTable& t) { t.gdn_fold = fold_everything; }},
      {"gates_beta_through_bf16", "gdn_gates", [](OpTable& t) { t.gdn_gates = gates_beta_through_bf16; }},
      {"channel_bias_read_as_one", "gdn_gates", [](OpTable& t) { t.gdn_gates = channel_bias_read_as_one; }},
      {"softplus_linear_above_10", "gdn_gates", [](OpTable& t) { t.gdn_gates = softplus_linear_above_10; }},
      {"conv_window_one_short", "conv", [](OpTable& t) { t.conv = conv_window_one_short; }},
      {"conv_single_tokens_shifted", "conv", [](OpTable& t) { t.conv = conv_single_tokens_shifted; }},
      {"one_tap_missing", "conv", [](OpTable& t) { t.conv = one_tap_missing; }},
      {"snapshot_one_too_early", "snapshot_commit", [](OpTable& t) { t.snapshot_commit = snapshot_one_too_early; }},
      {"snapshot_for_a_cancelled_row", "snapshot_commit",
       [](OpTable& t) { t.snapshot_commit = snapshot_for_a_cancelled_row; }},
      {"snapshot_state_not_rounded", "snapshot_verify",
       [](OpTable& t) { t.snapshot_verify = snapshot_state_not_rounded; }},
      {"snapshot_of_the_last_token_missing", "snapshot_verify",
       [](OpTable& t) { t.snapshot_verify = snapshot_of_the_last_token_missing; }},
      {"snapshot_verify_moves_the_state", "snapshot_verify",
       [](OpTable& t) { t.snapshot_verify = snapshot_verify_moves_the_state; }},
      {"copies_all_tensors_but_one", "seat_copy", [](OpTable& t) { t.seat_copy = copies_all_tensors_but_one; }},
      {"copies_the_other_way", "seat_copy", [](OpTable& t) { t.seat_copy = copies_the_other_way; }},
      {"packs_one_position_late", "seat_pack",
       [](OpTable& t) { t.seat_pack = packs_one_position_late<&OpTable::seat_pack>; }},
      {"unpacks_one_position_late", "seat_unpack",
       [](OpTable& t) { t.seat_unpack = packs_one_position_late<&OpTable::seat_unpack>; }},
      {"unpacks_into_another_seat", "seat_unpack", [](OpTable& t) { t.seat_unpack = unpacks_into_another_seat; }},
  };
}

class OpTestFault : public ::testing::TestWithParam<Fault> {};
INSTANTIATE_TEST_SUITE_P(, OpTestFault, ::testing::ValuesIn(faults()),
                         [](const auto& info) { return info.param.name; });

// Faults are put around ops on float32 tokens.
bool suits_faults(const Shape& s) { return s.tokens == DType::f32 && s.out == DType::f32 && !s.fused; }

// Small cases, and the first one that fails says how to see it again.
TEST_P(OpTestFault, IsCaught) {
  OpTable table = mutant::base();
  GetParam().inject(table);
  int failed = 0;
  for (const Case& c : cases_of(GetParam().op)) {
    if (c.shape.K * c.shape.V * c.shape.Hv > 1 << 16 || !suits_faults(c.shape)) continue;
    const Outcome outcome = test(c, table, {.seed = 5});
    if (outcome.status != Status::failed) continue;
    if (failed++ > 0) continue;
    EXPECT_THAT(outcome.text, HasSubstr(fmt::format("op_test --op {} --backend cpu --mode test --seed 5", c.op)));
    EXPECT_THAT(outcome.text, HasSubstr(fmt::format("--filter '{}'", c.name())));
    EXPECT_FALSE(outcome.json["failures"].empty());
  }
  EXPECT_GT(failed, 0);
}

TEST(OpTest, SaysWhatABackendCannot) {
  const Case c = cases_of("gdn_fold").front();
  OpTable table = mutant::base();
  table.gdn_fold = nullptr;
  EXPECT_EQ(support(c, table, {}).status, Status::unsupported);
  EXPECT_THAT(test(c, table, {}).text, HasSubstr("no gdn_fold"));
  table.gdn_fold = [](const GdnFoldArgs&, Stream&) { fail(ErrorKind::unsupported, "gdn_fold: K = 128 is not 64"); };
  EXPECT_THAT(support(c, table, {}).text, HasSubstr("unsupported: gdn_fold: K = 128 is not 64"));
  EXPECT_EQ(support(c, mutant::base(), {}).status, Status::ok);
  table.make_stream = nullptr;
  EXPECT_EQ(support(c, table, {}).status, Status::unsupported);
}

TEST(OpTest, MeasuresTimeAndBytes) {
  // Hv = 6 heads of 35x13 in float16 twice, 32 records of 2 keys, 6 values, 6 gates and 6 betas a row.
  const Case c{"gdn_fold", "odd", detail::kOdd(DType::f16), 3, 0, 40, true};
  const Outcome outcome = measure(c, mutant::base(), {.rounds = 2});
  EXPECT_EQ(outcome.json["bytes"], 3 * (2 * 6 * 35 * 13 * 2 + 32 * (2 * 35 * 2 + 6 * 13 * 2 + 6 * 4 + 6 * 4)));
  EXPECT_GT(outcome.json["us"], 0);
  EXPECT_GT(outcome.json["share_of_read"], 0);
}

}  // namespace
}  // namespace deltaring::op_test
