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
  int64_t B, T;  // rows; tokens of the longest, 0 for a fold
  int64_t Hk, Hv, K, V, G;
  int64_t R, F;  // F 0: off the grid
  DType tokens, records, state;
  bool prefill;  // fold_to may lie inside the row
  bool exact;    // window tokens behind a grid point are computed from the state folded there
  bool aligned;  // all rows begin on 16 bytes, a head's state is dense, strides of heads and below fit 32 bits
};

enum class VerifyKernel : uint8_t {
  generic,   // token by token on CUDA cores: every shape and dtype
  direct,    // tensor cores, a block a value head
  pipeline,  // tensor cores, a persistent block a multiprocessor through which heads flow
};

struct VerifyPlan {
  VerifyKernel kernel = VerifyKernel::generic;
  bool exact = false;
  bool prefill = false;
  bool early = false;  // a launch may begin while the kernel before it ends (sm_90)
  int chunk = 0;       // tokens of a row that one launch takes
  int launches = 1;
  bool wide = false;  // segments of more than 8 window tokens or more than 24 keys
  int blocks = 0, threads = 0;
  int shared = 0;                           // bytes, dynamic
  int tokens = 0, states = 0, scratch = 0;  // of them: rings of token and state blocks; what one preparing warp has
  const char* reason = "";                  // why this kernel, in one line
};

VerifyPlan plan_verify(const VerifyDesc& desc, const DeviceLimits& device);
std::string to_string(const VerifyPlan& plan);

// Sizes that kernels and plan agree on.
constexpr int kHead = 128;        // K = V
constexpr int kKeyPitch = 320;    // bytes between q and k rows in shared memory: fragment reads meet no bank twice
constexpr int kKeyTiles = 4;      // 8 keys each, the most of a segment: F-1 + 16 <= 32
constexpr int kQueryTiles = 2;    // 8 queries each
constexpr int kFragment = 768;    // bytes of a [16, 8] fragment in three bf16 parts
constexpr int kSegments = 9;      // of a row: 64 keys in grains of 8, and the rest
constexpr int kMostRecords = 64;  // R
constexpr int kDirectThreads = 32 * (kHead / 16 + 1);
// A state flows in slices of 32 KB: half a head of f32.
constexpr int slices_of(int element_bytes) { return element_bytes / 2; }
// Bytes between v rows of a slice: no bank is met twice.
constexpr int value_pitch(int slices) { return 2 * kHead / slices + 16; }
constexpr int kPreparers = 6;  // warps
constexpr int kPipelineThreads = 32 * (8 + kPreparers + 2);
constexpr int kPipelineStatic = 2560, kDirectStatic = 512;  // bytes, at least, of what the kernels hold besides

}  // namespace deltaring::cuda
