// Attention over a paged KV store with grouped queries: causal or over whole rows, with or without a sliding window,
// sinks and a sigmoid output gate.
#pragma once
#include "base/view.h"
#include "ops/rows.h"

namespace deltaring {

// One layer's pages. Position p of a seat lives in row p % page_rows of page table[seat * table_stride + p /
// page_rows].
struct KvPages {
  View<4> k, v;                    // [pages, Hkv, page_rows, D] f32, bf16 or f16; k after norm and rope
  const int32_t* table = nullptr;  // [seats, table_stride]
  int64_t table_stride = 0;
  int64_t seats = 0;  // rows of the table
};

struct KvAppendArgs {
  Rows rows;     // row token i is stored at position first + i
  View<3> k, v;  // [tokens, Hkv, D] f32
  KvPages kv;
};

// Query at position p sees positions [p - window + 1, p] of its own seat (from 0 without a window), or up to the last
// position of its row with whole_row; all before the row's end must have been appended.
//   out = softmax(scale q.k) v, times sigmoid(gate) when gate is given. Query head h uses kv head h / (Hq/Hkv). A sink
//   is one more score of its head, with the value zero.
// The bits of a query's result depend on p and the rows it sees only: not on the row's length (but by whole_row), the
// batch or the threads.
struct AttentionArgs {
  Rows rows;
  View<3> q;     // [tokens, Hq, D] f32
  View<3> gate;  // [tokens, Hq, D] f32 or null
  KvPages kv;
  float scale;
  bool whole_row = false;        // queries see what stands behind them in their row
  int64_t window = 0;            // positions that a query sees up to its own, 0 = all
  const float* sinks = nullptr;  // [Hq] or null
  View<3> out;                   // [tokens, Hq, D] f32
};

void check(const KvAppendArgs& args);
void check(const AttentionArgs& args);

}  // namespace deltaring
