// What every level of the ladder shares: a Gated DeltaNet layer of Qwen3.8-27B with a window of T = 8 tokens right
// behind a bf16 checkpoint, its check against float64, and its clock. See docs/kernels.md for the math.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "backends/cuda/device/gates.cuh"

namespace ladder {

constexpr int Hk = 16, Hv = 48, kGroup = Hv / Hk, D = 128, T = 8;  // D = K = V
constexpr int R = 32, kSlot = 24;                                  // ring rows; the slot of the first token
constexpr int kTokenHeads = 2 * Hk + Hv;                           // q, k and v of a token
constexpr float kScale = 0.08838834764831845f;                     // K^-1/2

// One call, all in device memory. bf16 numbers are their bits.
struct Verify {
  int B;                          // rows
  const int32_t* seat;            // [B]
  const uint16_t* qkv;            // [B T, kTokenHeads, D]
  const uint16_t *a, *b;          // [B T, Hv] raw gates
  const float *A_log, *dt_bias;   // [Hv]
  uint16_t* state;                // [B, Hv, D, D] checkpoints by seat; a verify leaves them alone
  uint16_t *record_k, *record_v;  // out [B, Hk, R, D], [B, Hv, R, D]
  float *record_g, *record_beta;  // out [B, Hv, R]
  void* out;                      // [B T, Hv, D] bf16, or f32 for the check
  bool wide;                      // f32
  float* scratch;                 // [B, Hv, D, D]: level 1 alone
};

// --- for the kernels
// --------------------------------------------------------------------------------------------------

__device__ __forceinline__ float from_bf16(uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ uint32_t to_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

// Eight neighbours.
__device__ __forceinline__ void unpack(const uint4& bits, float* x) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; i++) x[2 * i] = from_bf16(words[i] & 0xffff), x[2 * i + 1] = from_bf16(words[i] >> 16);
}

// Heads of a token: queries at 0, keys at Hk, values at 2 Hk.
__device__ __forceinline__ const uint16_t* token(const Verify& p, int row, int t, int head) {
  return p.qkv + ((static_cast<size_t>(row) * T + t) * kTokenHeads + head) * D;
}
__device__ __forceinline__ const uint16_t* state_of(const Verify& p, int row, int head) {
  return p.state + (static_cast<size_t>(p.seat[row]) * Hv + head) * D * D;
}
__device__ __forceinline__ size_t slot_of(const Verify& p, int row, int heads, int head, int t) {
  return (static_cast<size_t>(p.seat[row]) * heads + head) * R + (kSlot + t) % R;
}

struct Gate {
  float g, beta;  // log decay, and how much of a value is written
};
__device__ __forceinline__ Gate gate_of(const Verify& p, int row, int t, int head) {
  const size_t at = (static_cast<size_t>(row) * T + t) * Hv + head;
  return {deltaring::cuda::log_decay(p.A_log[head], p.dt_bias[head], from_bf16(p.a[at])),
          deltaring::cuda::sigmoid(from_bf16(p.b[at]))};
}

// Values i and i+1 of a head's output.
__device__ __forceinline__ void put(const Verify& p, int row, int t, int head, int i, float x, float y) {
  const size_t at = ((static_cast<size_t>(row) * T + t) * Hv + head) * D + i;
  if (p.wide) {
    *reinterpret_cast<float2*>(static_cast<float*>(p.out) + at) = {x, y};
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.out) + at) = to_bf16(x) | to_bf16(y) << 16;
  }
}

__device__ __forceinline__ void append_gate(const Verify& p, int row, int t, int head, Gate gate) {
  const size_t at = slot_of(p, row, Hv, head, t);
  p.record_g[at] = gate.g, p.record_beta[at] = gate.beta;
}
// Records of a head's values, and of its key head's keys where it is the first of the group; `thread` of `threads`.
__device__ __forceinline__ void append(const Verify& p, int row, int head, int thread, int threads) {
  const auto copy = [&](const uint16_t* from, uint16_t* to, int i) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  };
  for (int i = thread; i < T * D / 8; i += threads) {
    const int t = i / (D / 8), piece = i % (D / 8), key_head = head / kGroup;
    copy(token(p, row, t, 2 * Hk + head), p.record_v + slot_of(p, row, Hv, head, t) * D, piece);
    if (head % kGroup == 0)
      copy(token(p, row, t, Hk + key_head), p.record_k + slot_of(p, row, Hk, key_head, t) * D, piece);
  }
}

// Sum over a warp, in all lanes.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}
// A warp: a q or k row at length 1, times scale.
__device__ __forceinline__ void normalise(const uint16_t* from, float scale, float* to) {
  const int lane = threadIdx.x % 32;
  float sum = 0;
#pragma unroll
  for (int i = lane; i < D; i += 32) sum += from_bf16(from[i]) * from_bf16(from[i]);
  scale *= rsqrtf(warp_sum(sum) + 1e-6f);
#pragma unroll
  for (int i = lane; i < D; i += 32) to[i] = scale * from_bf16(from[i]);
}

// --- for main
// ---------------------------------------------------------------------------------------------------------

inline void ok(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(status));
  std::exit(1);
}

inline __host__ __device__ float uniform(uint64_t seed, uint64_t i) {  // in [-1, 1)
  uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15 ^ (i + 1) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9, z = (z ^ (z >> 27)) * 0x94d049bb133111eb, z ^= z >> 31;
  return static_cast<float>(z >> 40) * 0x1p-23f - 1;
}
template <class Number>
__global__ void fill(Number* to, size_t count, float scale, float offset, uint64_t seed) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const float x = offset + scale * uniform(seed, i);
    if constexpr (sizeof(Number) == 2) {
      to[i] = static_cast<uint16_t>(to_bf16(x));
    } else {
      to[i] = x;
    }
  }
}
inline __global__ void read_all(const uint4* from, size_t count, float* sink) {
  uint32_t sum = 0;
  const size_t step = size_t{gridDim.x} * blockDim.x;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    const uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
    sum += a.x ^ b.y ^ c.z ^ d.w;
  }
  if (sum == 0x12345678) *sink = 1;
}

// Device memory lives as long as the program.
template <class Number>
Number* random_array(size_t count, float scale, float offset = 0) {
  static uint64_t seed = 0;
  Number* array = nullptr;
  ok(cudaMalloc(&array, count * sizeof(Number)), "cudaMalloc");
  fill<<<1024, 256>>>(array, count, scale, offset, ++seed);
  return array;
}
template <class Number>
std::vector<Number> fetch(const Number* from, size_t count) {
  std::vector<Number> to(count);
  ok(cudaMemcpy(to.data(), from, count * sizeof(Number), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return to;
}

inline Verify make_verify(int B, bool wide, float* scratch) {
  const size_t rows = static_cast<size_t>(B), tokens = rows * T;
  std::vector<int32_t> seats(rows);
  for (int b = 0; b < B; b++) seats[static_cast<size_t>(b)] = B - 1 - b;
  int32_t* seat = nullptr;
  ok(cudaMalloc(&seat, rows * sizeof *seat), "cudaMalloc");
  ok(cudaMemcpy(seat, seats.data(), rows * sizeof *seat, cudaMemcpyHostToDevice), "cudaMemcpy");
  return {.B = B,
          .seat = seat,
          .qkv = random_array<uint16_t>(tokens * kTokenHeads * D, 1),
          .a = random_array<uint16_t>(tokens * Hv, 1.5f),
          .b = random_array<uint16_t>(tokens * Hv, 1.5f),
          .A_log = random_array<float>(Hv, 0.5f, 0.5f),
          .dt_bias = random_array<float>(Hv, 0.5f, 0.5f),
          .state = random_array<uint16_t>(rows * Hv * D * D, 0.17f),
          .record_k = random_array<uint16_t>(rows * Hk * R * D, 0),
          .record_v = random_array<uint16_t>(rows * Hv * R * D, 0),
          .record_g = random_array<float>(rows * Hv * R, 0),
          .record_beta = random_array<float>(rows * Hv * R, 0),
          .out = wide ? static_cast<void*>(random_array<float>(tokens * Hv * D, 0, NAN))
                      : random_array<uint16_t>(tokens * Hv * D, 0, NAN),
          .wide = wide,
          .scratch = scratch};
}

// Bytes that a row must move: its checkpoint, q, k, v and gates in; outputs and records out.
inline double row_bytes() {
  return 2.0 * Hv * D * D + T * (2.0 * (kTokenHeads + 2 * Hv + Hk) * D + 2 * 2 * Hv + 2 * 4 * Hv);
}

double head_error(const Verify& p, int row, int head);

// The largest relative error of a head's outputs, of some heads of some rows; NaN or infinite when a record is wrong.
inline double worst_error(const Verify& p) {
  double worst = 0;
  for (int i = 0; i < 24; i++) {
    const double error = head_error(p, (i * 37 + (i % 2 ? p.B - 1 : 0)) % p.B, (i * 17) % Hv);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

// Root mean square of a head's errors against the recurrence in double, relative to that of its outputs.
inline double head_error(const Verify& p, int row, int head) {
  const auto number = [](uint16_t bits) { return static_cast<double>(std::bit_cast<float>(uint32_t{bits} << 16)); };
  const size_t first = static_cast<size_t>(row) * T, seat = static_cast<size_t>(fetch(p.seat, p.B)[row]);
  const auto tokens = fetch(p.qkv + first * kTokenHeads * D, size_t{T} * kTokenHeads * D);
  const auto a = fetch(p.a + first * Hv, T * Hv), b = fetch(p.b + first * Hv, T * Hv);
  const auto A_log = fetch(p.A_log, Hv), dt_bias = fetch(p.dt_bias, Hv);
  const auto state = fetch(p.state + (seat * Hv + head) * D * D, size_t{D} * D);
  const auto out = fetch(static_cast<const float*>(p.out) + first * Hv * D, size_t{T} * Hv * D);
  const size_t rings = seat * Hv + head, key_rings = seat * Hk + head / kGroup;
  const auto keys = fetch(p.record_k + key_rings * R * D, size_t{R} * D);
  const auto values = fetch(p.record_v + rings * R * D, size_t{R} * D);
  const auto gs = fetch(p.record_g + rings * R, R), betas = fetch(p.record_beta + rings * R, R);
  std::vector<double> S;
  for (const uint16_t x : state) S.push_back(number(x));
  double wrong = 0, right = 0;
  for (int t = 0; t < T; t++) {
    const uint16_t *q = &tokens[(t * kTokenHeads + head / kGroup) * D], *k = q + Hk * D;
    const uint16_t* v = &tokens[(t * kTokenHeads + 2 * Hk + head) * D];
    double kk = 1e-6, qq = 1e-6;
    for (int i = 0; i < D; i++) kk += number(k[i]) * number(k[i]), qq += number(q[i]) * number(q[i]);
    const double x = number(a[t * Hv + head]) + dt_bias[head];
    const double g = -std::exp(static_cast<double>(A_log[head])) * (x > 20 ? x : std::log1p(std::exp(x)));
    const double beta = 1 / (1 + std::exp(-number(b[t * Hv + head])));
    for (int i = 0; i < D; i++) {
      double seen = 0, o = 0, *s = &S[i * D];
      for (int j = 0; j < D; j++) s[j] *= std::exp(g), seen += s[j] * number(k[j]) / std::sqrt(kk);
      const double d = beta * (number(v[i]) - seen);
      for (int j = 0; j < D; j++) {
        s[j] += d * number(k[j]) / std::sqrt(kk);
        o += s[j] * number(q[j]) / std::sqrt(qq * D);
      }
      const double error = out[(t * Hv + head) * D + i] - o;
      wrong += error * error, right += o * o;
    }
    const int slot = (kSlot + t) % R;
    const bool kept = std::equal(k, k + D, &keys[slot * D]) && std::equal(v, v + D, &values[slot * D]) &&
                      std::abs(gs[slot] - g) < 1e-5 * (1 - g) && std::abs(betas[slot] - beta) < 1e-5;
    if (!kept) wrong = INFINITY;
  }
  return std::sqrt(wrong / right);
}

// Median microseconds of a launch, of nine replays of a graph of them.
template <class Launch>
double graph_us(int launches, const Launch& launch) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  cudaEvent_t begin, end;
  ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  ok(cudaEventCreate(&begin), "cudaEventCreate"), ok(cudaEventCreate(&end), "cudaEventCreate");
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int i = 0; i < launches; i++) launch(i, stream);
  ok(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  ok(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
  std::vector<float> times(9);
  for (float& ms : times) {
    ok(cudaEventRecord(begin, stream), "cudaEventRecord");
    ok(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
    ok(cudaEventRecord(end, stream), "cudaEventRecord");
    ok(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    ok(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  }
  std::nth_element(times.begin(), times.begin() + 4, times.end());
  return times[4] * 1e3 / launches;
}

// main of a level: checks it, times it, prints one line of JSON. The argument is B. Returns 1 when an output is off by
// more than 1e-6 of its head's, 77 where the device has no such instructions.
inline int run(const char* level, void (*launch)(const Verify&, cudaStream_t), int argc, char** argv,
               int capability = 80) {
  const int B = argc > 1 ? std::atoi(argv[1]) : 128;
  cudaDeviceProp device;
  if (B < 1 || B > 4096) return std::fprintf(stderr, "usage: %s [B], rows from 1 to 4096\n", argv[0]), 2;
  ok(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  if (10 * device.major + device.minor < capability)
    return std::fprintf(stderr, "%s needs compute capability %d, this is %d\n", level, capability,
                        10 * device.major + device.minor),
           77;
  float* scratch = nullptr;
  ok(cudaMalloc(&scratch, sizeof(float) * B * Hv * D * D), "cudaMalloc");
  const Verify checked = make_verify(B, true, scratch);
  for (int i = 0; i < 3; i++) launch(checked, nullptr);
  ok(cudaDeviceSynchronize(), level);
  const double error = worst_error(checked);

  std::vector<Verify> sets;  // together larger than the cache
  for (int i = 0; i < std::clamp(static_cast<int>(3e8 / (B * row_bytes())) + 1, 2, 128); i++)
    sets.push_back(make_verify(B, false, scratch));
  for (const Verify& set : sets) launch(set, nullptr);
  ok(cudaDeviceSynchronize(), level);
  const int launches = std::max<int>(static_cast<int>(sets.size()), 40);
  const double us = graph_us(
      launches, [&](int i, cudaStream_t stream) { launch(sets[static_cast<size_t>(i) % sets.size()], stream); });
  const size_t probe = size_t{1} << 31;
  const auto* memory = random_array<float>(probe / 4, 1);
  const double read = probe / graph_us(4, [&](int, cudaStream_t stream) {
                        read_all<<<4 * device.multiProcessorCount, 512, 0, stream>>>(
                            reinterpret_cast<const uint4*>(memory), probe / 16, scratch);
                      });
  const double rate = B * row_bytes() / us;
  std::printf(
      "{\"level\": \"%s\", \"B\": %d, \"T\": %d, \"us\": %.2f, \"TB/s\": %.3f, \"share_of_read\": %.3f, "
      "\"read_TB/s\": %.3f, \"error\": %.2e}\n",
      level, B, T, us, rate * 1e-6, rate / read, read * 1e-6, error);
  return error < 1e-6 ? 0 : 1;
}

}  // namespace ladder
