// The generic delta rule: one token after the other in f32, the rows of a state in registers. Any head dims up to
// K = 256, any dtypes, any views; obeys the exact rule always. What it runs as is decided here, without a GPU.
#pragma once
#include <cstdint>

namespace deltaring::cuda {

// A block takes kBlockRows rows of V of one value head of one row of the batch: kGroupLanes lanes share a row of the
// state, each with `elements` of its K, in chunks of kChunk neighbours.
constexpr int kThreads = 128, kGroupLanes = 8, kGroupRows = 2, kChunk = 8;
constexpr int kGroups = kThreads / kGroupLanes, kBlockRows = kGroups * kGroupRows;
// Tokens that are made ready in shared memory at a time.
constexpr int kTile = 8;

constexpr int64_t kWidestK = 256;

struct RecurrentPlan {
  int elements;    // of K a lane: 8, 16 or 32, a template instance each
  bool channels;   // one decay a key channel instead of one a head: likewise
  bool wide;       // the state moves in 16-byte pieces
  int64_t parts;   // blocks of a head
  int64_t blocks;  // in all
  friend bool operator==(const RecurrentPlan&, const RecurrentPlan&) = default;
};

// K <= kWidestK. `aligned`: every row of the state begins on 16 bytes.
constexpr RecurrentPlan plan_recurrent(int64_t B, int64_t Hv, int64_t V, int64_t K, int64_t G, bool aligned) {
  const int64_t parts = (V + kBlockRows - 1) / kBlockRows;
  return {.elements = K <= 64    ? 8
                      : K <= 128 ? 16
                                 : 32,
          .channels = G > 1,
          .wide = aligned && K % kChunk == 0,
          .parts = parts,
          .blocks = B * Hv * parts};
}

}  // namespace deltaring::cuda
