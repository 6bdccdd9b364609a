// What a verify on tensor cores is launched as, decided on the host from shapes and the device's limits alone, so that
// it can be printed and tested without a GPU.
#pragma once
#include <cstdint>
#include <string>

#include "backends/cuda/limits.h"
#include "base/dtype.h"

namespace deltaring::cuda {

// What the plan depends on.
struct VerifyDesc {
  int64_t layers;  // that share the rows
  int64_t B, T;    // rows; tokens of the longest, 0 for a fold
  int64_t Hk, Hv, K, V, G;
  int64_t R, F;  // F 0: off the grid
  DType tokens, records, state;
  bool prefill;  // fold_to may lie inside the row
  bool exact;    // window tokens behind a grid point are computed from the state folded there
  bool aligned;  // all rows begin on 16 bytes, a head's state is dense, strides of heads and below fit 32 bits
};

enum class VerifyKernel : uint8_t {
  generic,  // token by token on CUDA cores: every shape and dtype
  tensor,   // tensor cores, small blocks of one or a few value heads
};

struct VerifyPlan {
  VerifyKernel kernel = VerifyKernel::generic;
  bool exact = false;
  bool prefill = false;
  int64_t early = 0;   // blocks that may begin while the kernel before ends (sm_90): as many as run at a time
  int part = 0;        // tokens of a row that are computed from one checkpoint at a time
  int first_part = 0;  // parts of the longest row: [first_part, parts)
  int parts = 1;
  int grain = 0;      // keys of a segment that is folded, at most
  bool wide = false;  // segments of more than 8 window tokens, or of more than 16 keys that are folded
  int heads = 0;      // value heads of a block
  int shares = 0;     // blocks of a key head
  int64_t whole = 0;  // rows of which that is so; of the `single` behind, blocks have one head
  int64_t single = 0;
  int64_t layers = 1;
  int64_t blocks = 0;       // of all rows and layers
  int shared = 0;           // bytes, dynamic
  int values = 0;           // of them: for v of a warp
  int room = 0;             // and for tokens and what is made of them
  const char* reason = "";  // why this kernel, in one line

  // Records are appended by a launch of their own, behind one that goes through several parts.
  bool appends() const { return parts - first_part == 1; }
  // The second dimension of its grid.
  int64_t turns() const { return whole + single * heads; }
};

VerifyPlan plan_verify(const VerifyDesc& desc, const DeviceLimits& device);
std::string to_string(const VerifyPlan& plan);

// Sizes that kernels and plan agree on.
constexpr int kHead = 128;         // K = V
constexpr int kKeyPitch = 272;     // bytes between q and k rows in shared memory: eight rows meet no bank twice
constexpr int kKeyTiles = 4;       // 8 keys each, the most of a segment: F-1 + 16 <= 32
constexpr int kQueryTiles = 2;     // 8 queries each
constexpr int kNumberTile = 256;   // bytes of a tile [8, 8] of f32
constexpr int kSegments = 9;       // of a row: 64 keys in grains of 8, and the rest
constexpr int kMostRecords = 64;   // R
constexpr int kScratchHead = 384;  // bytes of what a preparing warp has besides tiles of products
constexpr int kWarps = 4;          // of a block; each owns 32 rows of V
constexpr int kVerifyThreads = 32 * kWarps;
constexpr int resident_blocks(bool wide) { return wide ? 3 : 4; }  // of a multiprocessor, as registers allow
constexpr int kTileBytes = 8192;                                   // of a state: what a warp has of it at a time
constexpr int kHeaderBytes = 512;                                  // of what its warps know of its work, with room

}  // namespace deltaring::cuda
