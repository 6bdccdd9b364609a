// The harness under test: each mutant is a working backend with one fault put around it, and must be caught.
#include <gtest/gtest.h>

#include <iostream>

#include "ops/mutant_hosts.h"
#include "ops/mutant_kinds.h"
#include "ops/mutant_snapshots.h"
#include "ops/replay_properties.h"

namespace deltaring::replay {
namespace {

constexpr Shape kShape{.Hk = 1, .Hv = 2, .K = 8, .V = 8, .checkpoint = DType::bf16, .record = DType::bf16};
constexpr Shape kChannels{
    .Hk = 1, .Hv = 2, .K = 8, .V = 8, .G = 8, .checkpoint = DType::bf16, .record = DType::bf16, .scale = 0.5f};
constexpr Shape kSnapshots{.Hk = 1, .Hv = 2, .K = 8, .V = 8, .checkpoint = DType::bf16, .rollback = Rollback::snapshot};

struct Mutant {
  const char* name;
  const char* fault;
  void (*inject)(Subject&);
  Shape shape = kShape;
};

using Window = void (*)(const GdnVerifyArgs&, Stream&, bool prefill);

template <Window fault>
void window(Subject& s) {
  s.table.gdn_verify = [](const GdnVerifyArgs& a, Stream& stream) { fault(a, stream, false); };
  s.table.gdn_prefill = [](const GdnVerifyArgs& a, Stream& stream) { fault(a, stream, true); };
}
template <void (*fault)(const ConvArgs&, Stream&)>
void conv(Subject& s) {
  s.table.conv = fault;
}
template <void (*fault)(const GdnGatesArgs&, Stream&)>
void gates(Subject& s) {
  s.table.gdn_gates = fault;
}
template <Cursor (*fault)(Cursor, int64_t, int64_t)>
void commit(Subject& s) {
  s.commit = fault;
}
template <void (*fault)(const SnapshotVerifyArgs&, Stream&)>
void snapshots(Subject& s) {
  s.table.snapshot_verify = fault;
}
template <void (*fault)(const SnapshotCommitArgs&, Stream&)>
void restore(Subject& s) {
  s.table.snapshot_commit = fault;
}

std::vector<Mutant> mutants() {
  using namespace mutant;
  return {
      // conv and gates
      {"conv_window_one_short", "the oldest tap sees zeros", conv<conv_window_one_short>},
      {"conv_single_tokens_shifted", "steps without drafts use the next slot", conv<conv_single_tokens_shifted>},
      {"gates_beta_through_bf16", "beta is rounded", gates<gates_beta_through_bf16>},
      {"channel_bias_read_as_one", "dt_bias of channel 0 serves the head", gates<channel_bias_read_as_one>, kChannels},
      // kinds of layers
      {"one_channel_never_decays", "the last key channel keeps all", window<one_channel_never_decays>, kChannels},
      {"channel_gates_read_as_one", "g of channel 0 serves the head", window<channel_gates_read_as_one>, kChannels},
      {"q_norm_skipped", "q enters at its own length", window<q_norm_skipped>},
      {"scale_ignored", "K^-1/2 whatever was asked", window<scale_ignored>, kChannels},
      // replay
      {"no_decay", "the window does not decay", window<no_decay>},
      {"no_decay_in_replay", "the records do not decay", window<no_decay_in_replay>},
      {"one_record_too_many", "the last folded record is replayed again", window<one_record_too_many>},
      {"records_rounded_late", "the window uses k and v as they came", window<records_rounded_late>},
      {"width_5_forgets_its_last_record", "one width out of all is wrong", window<width_5_forgets_its_last_record>},
      {"checkpoint_not_rounded_in_passing", "grid points are passed", window<checkpoint_not_rounded_in_passing>},
      {"rounded_one_token_late", "the grid point's token sees the state as it was", window<rounded_one_token_late>},
      {"checkpoint_one_token_late", "the checkpoint holds F+1 tokens", window<checkpoint_one_token_late>},
      {"cursor_moves_without_fold", "the checkpoint is not written", window<cursor_moves_without_fold>},
      {"fold_does_nothing", "nor by the fold alone", [](Subject& s) { s.table.gdn_fold = mutant::fold_does_nothing; }},
      // rows, seats, bounds
      {"seats_of_two_rows_swapped", "rows 0 and 1 use each other's", window<seats_of_two_rows_swapped>},
      {"no_seat_means_seat_0", "-1 is clamped", window<no_seat_means_seat_0>},
      {"padding_left_as_it_was", "rows without a seat have no output", window<padding_left_as_it_was>},
      {"ragged_offsets_taken_as_dense", "row b begins at b T", window<ragged_offsets_taken_as_dense>},
      {"later_tokens_times_zero", "causality by a product", window<later_tokens_times_zero>},
      {"last_bit_depends_on_the_batch", "three rows round otherwise", window<last_bit_depends_on_the_batch>},
      {"depends_on_threads", "three threads round otherwise", [](Subject& s) { mutant::depend_on_threads(s.table); }},
      {"writes_one_record_past_the_window", "T+1 records", window<writes_one_record_past_the_window>},
      {"writes_a_foreign_seat", "the neighbour's record", window<writes_a_foreign_seat>},
      // host rules
      {"commit_one_less", "accepted drafts taken for committed rows", commit<commit_one_less>},
      {"commit_one_more", "T counted with the next anchor", commit<commit_one_more>},
      {"commit_at_least_one", "a cancelled row moves", commit<commit_at_least_one>},
      {"commit_clamped_to_the_conv", "at most taps-1 rows", commit<commit_clamped_to_the_conv>},
      {"commit_forgets_the_fold", "folded stays", commit<commit_forgets_the_fold>},
      {"commit_forgets_the_fold_of_a_cancelled_row", "folded stays where acc is 0",
       commit<commit_forgets_the_fold_of_a_cancelled_row>},
      // snapshots
      {"snapshot_one_too_early", "slot kept - 2", restore<snapshot_one_too_early>, kSnapshots},
      {"snapshot_for_a_cancelled_row", "kept 0 is taken for 1", restore<snapshot_for_a_cancelled_row>, kSnapshots},
      {"snapshot_of_another_row", "rows 0 and 1 swap their counts", restore<snapshot_of_another_row>, kSnapshots},
      {"snapshot_state_not_rounded", "only stored states are", snapshots<snapshot_state_not_rounded>, kSnapshots},
      {"snapshots_of_two_rows_swapped", "rows 0 and 1", snapshots<snapshots_of_two_rows_swapped>, kSnapshots},
      {"snapshot_of_the_last_token_missing", "T-1 slots are written", snapshots<snapshot_of_the_last_token_missing>,
       kSnapshots},
      {"snapshot_verify_moves_the_state", "to the anchor's", snapshots<snapshot_verify_moves_the_state>, kSnapshots},
  };
}

TEST(ReplayHarness, FindsNothingInRealBackends) {
  for (const OpTable* table : backends())
    for (const std::string& f : run_properties(subject_of(*table), {kShape, kChannels, kSnapshots})) ADD_FAILURE() << f;
}

class ReplayMutant : public testing::TestWithParam<Mutant> {};

TEST_P(ReplayMutant, IsCaught) {
  Subject subject = subject_of(mutant::base());
  GetParam().inject(subject);
  subject.table.name = GetParam().name;
  const Failures failures = run_properties(subject, {GetParam().shape});
  EXPECT_FALSE(failures.empty()) << GetParam().name << " passed every property: " << GetParam().fault;
  if (!failures.empty()) std::cout << failures[0] << "\n";
}

INSTANTIATE_TEST_SUITE_P(, ReplayMutant, testing::ValuesIn(mutants()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace deltaring::replay
