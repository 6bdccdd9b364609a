// The generic delta rule: one token after the other in f32, the rows of a state in registers. Any head dims up to
// K = 256, any dtypes, any views; obeys the exact rule always. What it runs as is decided here, without a GPU.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace deltaring::cuda {

// A block takes kBlockRows rows of V of one value head of one row of the batch: kGroupLanes lanes share kGroupRows rows
// of the state, each with `elements` of their K, in chunks of 16 bytes of neighbours.
constexpr int kThreads = 256, kGroupLanes = 8, kGroupRows = 2;
constexpr int kBlockRows = kThreads / kGroupLanes * kGroupRows;
// Tokens that are made ready in shared memory at a time, by a warp each.
constexpr int kTile = kThreads / 32;
// Blocks that a multiprocessor shall have room for, so that a thread has registers for its elements, their keys and,
// with a decay a channel, their decays: 64, 80 or 128, and 255.
constexpr int blocks_with(int elements, bool channels) {
  return elements == 8 ? 4 : elements == 32 ? 1 : channels ? 2 : 3;
}

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
constexpr RecurrentPlan plan_recurrent(int64_t B, int64_t Hv, int64_t V, int64_t K, int64_t G, DType state,
                                       bool aligned) {
  const int64_t parts = (V + kBlockRows - 1) / kBlockRows;
  const int64_t piece = 16 / static_cast<int64_t>(size_of(state));
  return {.elements = K <= 64    ? 8
                      : K <= 128 ? 16
                                 : 32,
          .channels = G > 1,
          .wide = aligned && K % piece == 0,
          .parts = parts,
          .blocks = B * Hv * parts};
}

}  // namespace deltaring::cuda
