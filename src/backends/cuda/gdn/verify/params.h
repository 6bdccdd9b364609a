// What a verify launch is told: device pointers, strides in elements, sizes. Plain C++, filled on the host.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace deltaring::cuda {

// A tensor of rows: [outer, head, ...] with the innermost dimension dense. Strides of heads and below fit 32 bits.
struct Strides {
  int64_t outer;      // seat
  int32_t head, row;  // of the ring: slot
};

struct VerifyParams {
  const int32_t* start;  // [B+1]; null: no row has tokens, records are folded
  const int32_t* seat;   // [B]
  const int64_t* first;  // [B]
  const int64_t* folded;
  const int64_t* fold_to;
  const int32_t* order;                    // [B]; null: as they come
  int32_t tokens;                          // of the views
  int32_t rows;                            // of the arrays, which every layer shares
  int32_t first_part, parts, part_tokens;  // part i takes tokens [i, i + 1) * part_tokens of each row
  int32_t heads, shares;                   // value heads of a block, and blocks of a key head
  int32_t whole;                           // rows of which that is so; of those behind, blocks have one head
  int32_t values, room;                    // bytes of shared memory: a warp's v; tokens and all that is made of them
  int32_t seats, Hv, group;                // seats of a layer; group = Hv / Hk
  int32_t R, log2_F;                       // R a power of two, F = 8 or 16, off the grid R
  bool on_grid;                            // checkpoints stand on multiples of F
  uint32_t early;                          // blocks that may begin before the kernel before has ended
  int32_t longest;                         // tokens of a row, at most
  bool prefill;                            // fold_to may lie inside the row
  bool exact;                              // cut the window at grid points too
  bool append;                             // the window's records are written here
  bool l2;
  float scale;

  const uint16_t *q, *k, *v;  // bf16 [tokens, H, 128]
  int32_t q_token, q_head, k_token, k_head, v_token, v_head;
  const void *g, *beta;  // f32 [tokens, Hv]; raw a, b of gate_dtype where A_log is given
  int32_t g_token, g_head, beta_token, beta_head;
  DType gate_dtype, out_dtype;
  const float *A_log, *dt_bias;  // [Hv]
  void* out;                     // [tokens, Hv, 128]
  int32_t out_token, out_head;

  void* state;                    // [layers x seats, Hv, 128, 128], a head dense
  uint16_t *record_k, *record_v;  // bf16 [layers x seats, H, R, 128]
  float *record_g, *record_beta;  // [layers x seats, Hv, R]
  Strides state_at, k_at, v_at, g_at, beta_at;
};

}  // namespace deltaring::cuda
