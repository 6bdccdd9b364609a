// Faults around a working backend in the rollback by snapshots.
#pragma once
#include "ops/mutant_windows.h"

namespace deltaring::replay::mutant {

inline std::span<std::byte> snapshot_of(const View<5>& v, int32_t seat, int64_t slot) {
  return {static_cast<std::byte*>(v[seat][slot].data),
          static_cast<size_t>(v.shape[2] * v.shape[3] * v.shape[4]) * size_of(v.dtype)};
}
inline std::span<std::byte> state_of(const View<4>& v, int32_t seat) {
  return {static_cast<std::byte*>(v[seat].data),
          static_cast<size_t>(v.shape[1] * v.shape[2] * v.shape[3]) * size_of(v.dtype)};
}

// Commits with other counts.
template <class Count>
void commit_other(const SnapshotCommitArgs& args, Stream& stream, const Count& count) {
  std::vector<int32_t> kept(args.kept, args.kept + args.rows.count);
  for (int32_t& n : kept) n = count(n);
  SnapshotCommitArgs changed = args;
  changed.kept = kept.data();
  base().snapshot_commit(changed, stream);
}

// Accepted drafts are taken for committed rows: the anchor is not counted.
inline void snapshot_one_too_early(const SnapshotCommitArgs& args, Stream& stream) {
  commit_other(args, stream, [](int32_t n) { return std::max(n - 1, 0); });
}

inline void snapshot_for_a_cancelled_row(const SnapshotCommitArgs& args, Stream& stream) {
  commit_other(args, stream, [](int32_t n) { return std::max(n, 1); });
}

inline void snapshot_of_another_row(const SnapshotCommitArgs& args, Stream& stream) {
  std::vector<int32_t> kept(args.kept, args.kept + args.rows.count);
  if (kept.size() >= 2 && args.rows.seat[0] >= 0 && args.rows.seat[1] >= 0) std::swap(kept[0], kept[1]);
  SnapshotCommitArgs changed = args;
  changed.kept = kept.data();
  base().snapshot_commit(changed, stream);
}

// The state goes on in float32 from token to token, and only what is stored is rounded.
inline void snapshot_state_not_rounded(const SnapshotVerifyArgs& args, Stream& stream) {
  if (!args.snapshots) return base().snapshot_verify(args, stream);
  const int64_t size = args.state.shape[1] * args.state.shape[2] * args.state.shape[3], slots = args.snapshots.shape[1];
  std::vector<float> state(args.state.shape[0] * size), snapshots(state.size() * slots, NAN);
  each_seat(args.rows, [&](int32_t, int32_t seat) {
    load_floats(args.state[seat].data, args.state.dtype, 0, size, &state[seat * size]);
  });
  SnapshotVerifyArgs wide = args;
  wide.state = dense<4>(state.data(), DType::f32, args.state.shape);
  wide.snapshots = dense<5>(snapshots.data(), DType::f32, args.snapshots.shape);
  base().snapshot_verify(wide, stream);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    for (int32_t i = 0; i < args.rows.length(b); i++)
      store_floats(args.snapshots[seat][i].data, args.state.dtype, 0, size, &snapshots[(seat * slots + i) * size]);
  });
}

inline void snapshots_of_two_rows_swapped(const SnapshotVerifyArgs& args, Stream& stream) {
  base().snapshot_verify(args, stream);
  if (!args.snapshots || args.rows.count < 2 || args.rows.seat[0] < 0 || args.rows.seat[1] < 0) return;
  for (int32_t i = 0; i < std::min(args.rows.length(0), args.rows.length(1)); i++)
    std::ranges::swap_ranges(snapshot_of(args.snapshots, args.rows.seat[0], i),
                             snapshot_of(args.snapshots, args.rows.seat[1], i));
}

// One slot a draft: the window's last token leaves none.
inline void snapshot_of_the_last_token_missing(const SnapshotVerifyArgs& args, Stream& stream) {
  std::vector<std::vector<std::byte>> saved(args.rows.count);
  const auto last = [&](int32_t b, int32_t seat) { return snapshot_of(args.snapshots, seat, args.rows.length(b) - 1); };
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    if (!args.snapshots || args.rows.length(b) == 0) return;
    const auto bytes = last(b, seat);
    saved[b].assign(bytes.begin(), bytes.end());
  });
  base().snapshot_verify(args, stream);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    if (!saved[b].empty()) std::ranges::copy(saved[b], last(b, seat).begin());
  });
}

inline void snapshot_verify_moves_the_state(const SnapshotVerifyArgs& args, Stream& stream) {
  base().snapshot_verify(args, stream);
  each_seat(args.rows, [&](int32_t b, int32_t seat) {
    if (args.snapshots && args.rows.length(b) > 0)
      std::ranges::copy(snapshot_of(args.snapshots, seat, 0), state_of(args.state, seat).begin());
  });
}

}  // namespace deltaring::replay::mutant
