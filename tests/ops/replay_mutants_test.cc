// The harness under test: each mutant is a working backend with one fault put around it, and must be caught.
#include <gtest/gtest.h>

#include <iostream>

#include "backends/tables.h"
#include "ops/replay_properties.h"

namespace deltaring::replay {
namespace {

const OpTable& base() { return backend("cpu"); }

void call(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  (prefill ? base().gdn_prefill : base().gdn_verify)(args, stream);
}

// Calls f(row, seat) for rows that have one.
template <class F>
void each_seat(const Rows& rows, const F& f) {
  for (int32_t b = 0; b < rows.count; b++)
    if (rows.seat[b] >= 0) f(b, rows.seat[b]);
}

template <int N>
float* gate_record(const View<N>& view, int32_t seat, int64_t head, int64_t position) {
  return view.f32(seat, head, position % view.shape[2]);
}

std::vector<std::byte> checkpoint_of(const GdnState& s, int32_t seat) {
  const auto* bytes = static_cast<const std::byte*>(s.checkpoint[seat].data);
  const auto shape = s.checkpoint.shape;
  return {bytes, bytes + shape[1] * shape[2] * shape[3] * size_of(s.checkpoint.dtype)};
}

// --- conv ---

// The oldest tap sees a zero when it lies in the ring.
void conv_window_one_short(const ConvArgs& args, Stream& stream) {
  const int64_t C = args.x.shape[1], Rc = args.ring.shape[1], back = args.weight.shape[1] - 1;
  std::vector<std::vector<float>> saved(args.rows.count);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    const int64_t p = args.rows.first[b] - back;
    if (p < 0 || args.rows.length(b) == 0) return;
    float* slot = args.ring.f32(seat, p % Rc);
    saved[b].assign(slot, slot + C);
    std::fill_n(slot, C, 0.0f);
  });
  base().conv(args, stream);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    const int64_t p = args.rows.first[b] - back;
    if (!saved[b].empty() && p + Rc >= args.rows.first[b] + args.rows.length(b))
      std::ranges::copy(saved[b], args.ring.f32(seat, p % Rc));
  });
}

// Steps without drafts read and write one slot further.
void conv_single_tokens_shifted(const ConvArgs& args, Stream& stream) {
  std::vector<int64_t> first(args.rows.first, args.rows.first + args.rows.count);
  each_seat(args.rows, [&](int32_t b, int32_t) { first[b] += args.rows.length(b) == 1; });
  ConvArgs shifted = args;
  shifted.rows.first = first.data();
  base().conv(shifted, stream);
}

// --- gates ---

void gates_beta_through_bf16(const GdnGatesArgs& args, Stream& stream) {
  base().gdn_gates(args, stream);
  for (int64_t t = 0; t < args.beta.shape[0]; t++)
    for (int64_t j = 0; j < args.beta.shape[1]; j++) *args.beta.f32(t, j) = round_to(DType::bf16, *args.beta.f32(t, j));
}

// --- verify and prefill ---

void no_decay(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  Matrix zero(args.g.shape[0], args.g.shape[1]);
  for (int64_t t = 0; t < args.g.shape[0]; t++) std::fill_n(zero.row(t), args.g.shape[1], 0.0f);
  GdnVerifyArgs changed = args;
  changed.g = zero.heads(0, args.g.shape[1], 1);
  call(changed, stream, prefill);
}

// The records lose their decay while the call replays them.
void no_decay_in_replay(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  const View<4>& g = args.state.record_g;
  std::vector<std::pair<float*, float>> saved;
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    for (int64_t p = args.rows.folded[b]; p < args.rows.first[b]; p++)
      for (int64_t j = 0; j < g.shape[1]; j++) {
        float* slot = gate_record(g, seat, j, p);
        saved.push_back({slot, *slot}), *slot = 0;
      }
  });
  call(args, stream, prefill);
  for (auto [slot, value] : saved)
    if (*slot == 0) *slot = value;
}

void checkpoint_not_rounded_in_passing(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  GdnVerifyArgs changed = args;
  changed.grain = 0;
  call(changed, stream, prefill);
}

void seats_of_two_rows_swapped(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  std::vector<int32_t> seat(args.rows.seat, args.rows.seat + args.rows.count);
  if (seat.size() >= 2 && seat[0] >= 0 && seat[1] >= 0) std::swap(seat[0], seat[1]);
  GdnVerifyArgs changed = args;
  changed.rows.seat = seat.data();
  call(changed, stream, prefill);
}

void no_seat_means_seat_0(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  const size_t count = args.rows.count;
  std::vector<int32_t> seat(args.rows.seat, args.rows.seat + count);
  std::vector<int64_t> first(args.rows.first, args.rows.first + count);
  std::vector<int64_t> folded(args.rows.folded, args.rows.folded + count);
  std::vector<int64_t> fold_to(args.rows.fold_to, args.rows.fold_to + count);
  for (size_t b = 0; b < count; b++)
    if (seat[b] < 0) seat[b] = 0, first[b] = folded[b] = fold_to[b] = 0;
  GdnVerifyArgs changed = args;
  changed.rows.seat = seat.data(), changed.rows.first = first.data();
  changed.rows.folded = folded.data(), changed.rows.fold_to = fold_to.data();
  call(changed, stream, prefill);
}

// Causality by multiplying with zero.
void later_tokens_times_zero(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  call(args, stream, prefill);
  each_seat(args.rows, [&](int32_t b, int32_t) {
    for (int32_t t = args.rows.start[b]; t + 1 < args.rows.start[b + 1]; t++)
      for (int64_t i = 0; i < args.out.shape[2]; i++) *args.out.f32(t, 0, i) += 0.0f * *args.v.f32(t + 1, 0, i);
  });
}

// The window computes with what it got, and only the stored records are rounded.
void records_rounded_late(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  const auto widen = [](const View<4>& from, std::vector<float>& to) {
    const auto [seats, heads, R, width] = from.shape;
    for (int64_t seat = 0; seat < seats; seat++)
      for (int64_t i = 0; i < heads * R * width; i++) to.push_back(load_as_float(from[seat].data, from.dtype, i));
    return dense<4>(to.data(), DType::f32, from.shape);
  };
  const auto narrow = [](const std::vector<float>& from, const View<4>& to) {
    const int64_t block = static_cast<int64_t>(from.size()) / to.shape[0];
    for (int64_t i = 0; i < static_cast<int64_t>(from.size()); i++)
      if (!std::isnan(from[i])) store_from_float(to[i / block].data, to.dtype, i % block, from[i]);
  };
  std::vector<float> k, v;
  GdnVerifyArgs changed = args;
  changed.state.record_k = widen(args.state.record_k, k), changed.state.record_v = widen(args.state.record_v, v);
  call(changed, stream, prefill);
  narrow(k, args.state.record_k), narrow(v, args.state.record_v);
}

void last_bit_depends_on_the_batch(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  call(args, stream, prefill);
  if (args.rows.count < 3 || args.rows.length(1) == 0 || args.rows.seat[1] < 0) return;
  float* out = args.out.f32(args.rows.start[1], 0, 0);
  *out = std::nextafter(*out, 2.0f);
}

void padding_left_as_it_was(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  call(args, stream, prefill);
  for (int32_t b = 0; b < args.rows.count; b++)
    for (int32_t t = args.rows.start[b]; t < args.rows.start[b + 1]; t++)
      if (args.rows.seat[b] < 0) *args.out.f32(t, 0, 0) = std::numeric_limits<float>::quiet_NaN();
}

// One width out of all: the fifth record of five is not stored.
void width_5_forgets_its_last_record(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  call(args, stream, prefill);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    if (args.rows.length(b) == 5 && args.rows.fold_to[b] <= args.rows.first[b] + 4)
      *gate_record(args.state.record_beta, seat, 0, args.rows.first[b] + 4) = 0;
  });
}

// The checkpoint stays where it was, and the cursor will move.
void cursor_moves_without_fold(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  GdnVerifyArgs changed = args;
  if (!prefill) changed.rows.fold_to = args.rows.folded;
  call(changed, stream, prefill);
}

// The replay starts one record early, with the last one that is already in the checkpoint.
void one_record_too_many(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  std::vector<std::vector<std::byte>> saved(args.rows.count);
  std::vector<int64_t> before(args.rows.folded, args.rows.folded + args.rows.count);
  std::vector<int32_t> seats(args.rows.count, -1);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    if (args.rows.folded[b] == 0 || args.rows.length(b) == 0) return;
    seats[b] = seat, before[b]--, saved[b] = checkpoint_of(args.state, seat);
  });
  GdnFoldArgs again{.rows = args.rows, .state = args.state, .grain = 0};
  again.rows.seat = seats.data(), again.rows.folded = before.data(), again.rows.fold_to = args.rows.folded;
  base().gdn_fold(again, stream);
  call(args, stream, prefill);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    if (args.rows.fold_to[b] == args.rows.folded[b])
      std::ranges::copy(saved[b], static_cast<std::byte*>(args.state.checkpoint[seat].data));
  });
}

void writes_one_record_past_the_window(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  call(args, stream, prefill);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    *gate_record(args.state.record_beta, seat, 0, args.rows.first[b] + args.rows.length(b)) = 0.5f;
  });
}

void writes_a_foreign_seat(const GdnVerifyArgs& args, Stream& stream, bool prefill) {
  call(args, stream, prefill);
  if (args.rows.count == 0 || args.rows.seat[0] < 0) return;
  const int64_t seat = (args.rows.seat[0] + 1) % args.state.record_g.shape[0];
  if (std::find(args.rows.seat, args.rows.seat + args.rows.count, seat) == args.rows.seat + args.rows.count)
    *args.state.record_g.f32(seat, 0, 0) = -1;
}

// --- fold, commit, stream ---

void fold_does_nothing(const GdnFoldArgs&, Stream&) {}

Cursor commit_one_less(Cursor c, int64_t fold_to, int64_t acc) {
  return {.folded = fold_to, .pos = c.pos + std::max<int64_t>(acc - 1, 0)};
}
Cursor commit_one_more(Cursor c, int64_t fold_to, int64_t acc) { return {.folded = fold_to, .pos = c.pos + acc + 1}; }
Cursor commit_at_least_one(Cursor c, int64_t fold_to, int64_t acc) {
  return {.folded = fold_to, .pos = c.pos + std::max<int64_t>(acc, 1)};
}
Cursor commit_clamped_to_the_conv(Cursor c, int64_t fold_to, int64_t acc) {
  return {.folded = fold_to, .pos = c.pos + std::min<int64_t>(acc, 3)};
}
Cursor commit_forgets_the_fold(Cursor c, int64_t, int64_t acc) { return {.folded = c.folded, .pos = c.pos + acc}; }
Cursor commit_forgets_the_fold_of_a_cancelled_row(Cursor c, int64_t fold_to, int64_t acc) {
  return acc == 0 ? c : Cursor{.folded = fold_to, .pos = c.pos + acc};
}

// A stream that knows its threads, for a backend whose third thread rounds differently.
struct CountedStream : Stream {
  CountedStream(int threads) : threads(threads), inner(base().make_stream(threads)) {}
  int threads;
  std::unique_ptr<Stream> inner;
};
Stream& inner(Stream& s) { return *static_cast<CountedStream&>(s).inner; }

void depend_on_threads(OpTable& t) {
  t.make_stream = [](int threads) -> std::unique_ptr<Stream> { return std::make_unique<CountedStream>(threads); };
  t.conv = [](const ConvArgs& a, Stream& s) { base().conv(a, inner(s)); };
  t.gdn_gates = [](const GdnGatesArgs& a, Stream& s) { base().gdn_gates(a, inner(s)); };
  t.gdn_prefill = [](const GdnVerifyArgs& a, Stream& s) { base().gdn_prefill(a, inner(s)); };
  t.gdn_fold = [](const GdnFoldArgs& a, Stream& s) { base().gdn_fold(a, inner(s)); };
  t.gdn_verify = [](const GdnVerifyArgs& a, Stream& s) {
    base().gdn_verify(a, inner(s));
    if (static_cast<CountedStream&>(s).threads == 3 && a.rows.count > 0 && a.rows.length(0) > 0 && a.rows.seat[0] >= 0)
      *a.out.f32(0, 0, 0) = std::nextafter(*a.out.f32(0, 0, 0), 2.0f);
  };
}

struct Mutant {
  const char* name;
  void (*inject)(Subject&);
};

template <void (*fault)(const GdnVerifyArgs&, Stream&, bool prefill)>
Mutant window(const char* name) {
  return {name, [](Subject& s) {
            s.table.gdn_verify = [](const GdnVerifyArgs& a, Stream& stream) { fault(a, stream, false); };
            s.table.gdn_prefill = [](const GdnVerifyArgs& a, Stream& stream) { fault(a, stream, true); };
          }};
}

template <Cursor (*fault)(Cursor, int64_t, int64_t)>
Mutant committed(const char* name) {
  return {name, [](Subject& s) { s.commit = fault; }};
}

std::vector<Mutant> mutants() {
  return {
      {"conv_window_one_short", [](Subject& s) { s.table.conv = conv_window_one_short; }},
      {"conv_single_tokens_shifted", [](Subject& s) { s.table.conv = conv_single_tokens_shifted; }},
      {"gates_beta_through_bf16", [](Subject& s) { s.table.gdn_gates = gates_beta_through_bf16; }},
      window<no_decay>("no_decay"),
      window<no_decay_in_replay>("no_decay_in_replay"),
      window<checkpoint_not_rounded_in_passing>("checkpoint_not_rounded_in_passing"),
      window<seats_of_two_rows_swapped>("seats_of_two_rows_swapped"),
      window<no_seat_means_seat_0>("no_seat_means_seat_0"),
      window<later_tokens_times_zero>("later_tokens_times_zero"),
      window<records_rounded_late>("records_rounded_late"),
      window<last_bit_depends_on_the_batch>("last_bit_depends_on_the_batch"),
      window<padding_left_as_it_was>("padding_left_as_it_was"),
      window<width_5_forgets_its_last_record>("width_5_forgets_its_last_record"),
      window<cursor_moves_without_fold>("cursor_moves_without_fold"),
      window<one_record_too_many>("one_record_too_many"),
      window<writes_one_record_past_the_window>("writes_one_record_past_the_window"),
      window<writes_a_foreign_seat>("writes_a_foreign_seat"),
      {"fold_does_nothing", [](Subject& s) { s.table.gdn_fold = fold_does_nothing; }},
      {"depends_on_threads", [](Subject& s) { depend_on_threads(s.table); }},
      committed<commit_one_less>("commit_one_less"),
      committed<commit_one_more>("commit_one_more"),
      committed<commit_at_least_one>("commit_at_least_one"),
      committed<commit_clamped_to_the_conv>("commit_clamped_to_the_conv"),
      committed<commit_forgets_the_fold>("commit_forgets_the_fold"),
      committed<commit_forgets_the_fold_of_a_cancelled_row>("commit_forgets_the_fold_of_a_cancelled_row"),
  };
}

constexpr Shape kShape{.Hk = 1, .Hv = 2, .K = 8, .V = 8, .checkpoint = DType::bf16, .record = DType::bf16};

TEST(ReplayHarness, FindsNothingInRealBackends) {
  for (const OpTable* table : backends())
    for (const std::string& f : run_properties(subject_of(*table), {kShape})) ADD_FAILURE() << f;
}

class ReplayMutant : public testing::TestWithParam<Mutant> {};

TEST_P(ReplayMutant, IsCaught) {
  Subject subject = subject_of(base());
  GetParam().inject(subject);
  subject.table.name = GetParam().name;
  const Failures failures = run_properties(subject, {kShape});
  EXPECT_FALSE(failures.empty()) << GetParam().name << " passed every property";
  for (const std::string& f : failures) std::cout << f << "\n";
}

INSTANTIATE_TEST_SUITE_P(, ReplayMutant, testing::ValuesIn(mutants()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace deltaring::replay
