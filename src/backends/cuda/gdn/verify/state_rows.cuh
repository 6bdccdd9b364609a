// A state in shared memory, and a warp's tiles of it in registers: sixteen rows by sixteen channels, as operand and as
// accumulator at once, so that a fold needs no exchange between lanes.
//
// Row v of a tile of 16 stands at place v / 2 + 8 (v % 2): a lane's two rows of a fragment, g and g + 8, are then
// neighbours of V, whose values and outputs move in pairs. The pitch lets eight places meet every bank once.
#pragma once
#include <cuda_fp16.h>

#include "backends/cuda/gdn/verify/fragments.cuh"
#include "backends/cuda/gdn/verify/tile.cuh"

namespace deltaring::cuda {

constexpr int kSteps = kHead / 16;

// Where row v of a slice stands, and which row stands at a place.
__device__ __forceinline__ int place_of(int v) { return (v & -16) + (v & 15) / 2 + (v & 1) * 8; }
__device__ __forceinline__ int row_at(int place) { return (place & -16) + (place & 7) * 2 + (place & 8) / 8; }

struct Bf16Words {
  __device__ static float2 unpack(uint32_t word) { return {bf16_low(word), bf16_high(word)}; }
  __device__ static uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};
struct F16Words {
  __device__ static float2 unpack(uint32_t word) { return __half22float2(*reinterpret_cast<const __half2*>(&word)); }
  __device__ static uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

// Channels 16 step and on of a tile. What the 16-bit dtypes have in common: a word is two channels; words 0 and 1 are
// the lane's rows at channels 2t, 2t+1 of the first 8, words 2 and 3 of the second.
template <class Words>
struct PackedStep {
  static constexpr int kBytes = 2, kPitch = state_pitch(kBytes);
  uint32_t w[4];

  __device__ void load(const char* tile, int step, int lane) {
    load_matrices(w, tile + (lane & 15) * kPitch + 32 * step + lane / 16 * 16);
  }
  __device__ void store(char* tile, int step, int lane) const {
#pragma unroll
    for (int m = 0; m < 4; m++)
      *reinterpret_cast<uint32_t*>(tile + (lane / 4 + m % 2 * 8) * kPitch + 32 * step + m / 2 * 16 + lane % 4 * 4) =
          w[m];
  }
  // Half h as an accumulator: the first row at 2t, 2t+1 (0, 1), the second (2, 3).
  __device__ void get(int h, float (&x)[4]) const {
    const float2 low = Words::unpack(w[2 * h]), high = Words::unpack(w[2 * h + 1]);
    x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
  }
  __device__ void set(int h, const float (&x)[4]) {
    w[2 * h] = Words::pack(x[0], x[1]), w[2 * h + 1] = Words::pack(x[2], x[3]);
  }
};

// parts(a): the A operand, exact as a sum of kParts bf16 operands.
struct Bf16Step : PackedStep<Bf16Words> {
  static constexpr int kParts = 1;
  __device__ void parts(uint32_t (&a)[kParts][4]) const {
#pragma unroll
    for (int m = 0; m < 4; m++) a[0][m] = w[m];
  }
};

struct F16Step : PackedStep<F16Words> {
  static constexpr int kParts = 2;
  __device__ void parts(uint32_t (&a)[kParts][4]) const {
#pragma unroll
    for (int m = 0; m < 4; m++) {
      const float2 x = F16Words::unpack(w[m]);
      uint32_t three[3];
      split(x.x, x.y, three);
      a[0][m] = three[0], a[1][m] = three[1];
    }
  }
};

struct F32Step {
  static constexpr int kParts = 3, kBytes = 4, kPitch = state_pitch(kBytes);
  float2 w[4];

  __device__ static int offset(int step, int m, int lane) {
    return (lane / 4 + m % 2 * 8) * kPitch + 64 * step + m / 2 * 32 + lane % 4 * 8;
  }
  __device__ void load(const char* tile, int step, int lane) {
#pragma unroll
    for (int m = 0; m < 4; m++) w[m] = *reinterpret_cast<const float2*>(tile + offset(step, m, lane));
  }
  __device__ void store(char* tile, int step, int lane) const {
#pragma unroll
    for (int m = 0; m < 4; m++) *reinterpret_cast<float2*>(tile + offset(step, m, lane)) = w[m];
  }
  __device__ void get(int h, float (&x)[4]) const {
    x[0] = w[2 * h].x, x[1] = w[2 * h].y, x[2] = w[2 * h + 1].x, x[3] = w[2 * h + 1].y;
  }
  __device__ void set(int h, const float (&x)[4]) { w[2 * h] = {x[0], x[1]}, w[2 * h + 1] = {x[2], x[3]}; }
  __device__ void parts(uint32_t (&a)[kParts][4]) const {
#pragma unroll
    for (int m = 0; m < 4; m++) {
      uint32_t three[3];
      split(w[m].x, w[m].y, three);
#pragma unroll
      for (int part = 0; part < 3; part++) a[part][m] = three[part];
    }
  }
};

}  // namespace deltaring::cuda
