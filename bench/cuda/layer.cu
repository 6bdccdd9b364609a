#include "cuda/layer.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace deltaring::bench {

namespace {

__device__ float uniform(uint64_t seed, uint64_t i) {
  uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15 ^ (i + 1) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9, z = (z ^ (z >> 27)) * 0x94d049bb133111eb, z ^= z >> 31;
  return static_cast<float>(z >> 40) * 0x1p-23f - 1;
}

__global__ void fill_kernel(void* to, int64_t count, DType t, float scale, float offset, uint64_t seed) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const float x = offset + scale * uniform(seed, i);
    if (t == DType::f32) static_cast<float*>(to)[i] = x;
    if (t == DType::bf16) static_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(x);
    if (t == DType::f16) static_cast<__half*>(to)[i] = __float2half_rn(x);
  }
}

__global__ __launch_bounds__(512) void read_kernel(const uint4* from, size_t count, float* sink) {
  uint32_t sum = 0;
  const size_t step = size_t{gridDim.x} * blockDim.x;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    const uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
    sum += a.x ^ b.y ^ c.z ^ d.w;
  }
  for (; i < count; i += step) sum += from[i].x;
  if (sum == 0x12345678) *sink = 1;
}

// In place, four independent words a thread and turn as in read_kernel.
__global__ __launch_bounds__(512) void update_kernel(uint4* words, size_t count) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const auto next = [](uint4 word) { return uint4{word.x ^ 1, word.y ^ 1, word.z ^ 1, word.w ^ 1}; };
  for (; i + 3 * step < count; i += 4 * step) {
    const uint4 a = words[i], b = words[i + step], c = words[i + 2 * step], d = words[i + 3 * step];
    words[i] = next(a), words[i + step] = next(b), words[i + 2 * step] = next(c), words[i + 3 * step] = next(d);
  }
  for (; i < count; i += step) words[i] = next(words[i]);
}

int streaming_blocks() {
  int device = 0, multiprocessors = 0;
  cudaGetDevice(&device), cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  return 4 * multiprocessors;
}

}  // namespace

void fill_uniform(void* to, int64_t count, DType t, float scale, float offset, uint64_t seed) {
  fill_kernel<<<1024, 256>>>(to, count, t, scale, offset, seed);
}

void stream_read(const void* from, size_t bytes, float* sink, cudaStream_t stream) {
  read_kernel<<<streaming_blocks(), 512, 0, stream>>>(static_cast<const uint4*>(from), bytes / 16, sink);
}

void stream_update(void* memory, size_t bytes, cudaStream_t stream) {
  update_kernel<<<streaming_blocks(), 512, 0, stream>>>(static_cast<uint4*>(memory), bytes / 16);
}

Layer::Layer(const OpTable& table, const LayerShape& shape, uint64_t seed) : table_(table), shape_(shape), seed_(seed) {
  const auto& [B, T, state, R, Hk, Hv] = shape_;
  const int64_t seats = B + 1, tokens = B * std::max<int64_t>(T, 1);
  qkv_ = random(tokens * shape.channels(), DType::bf16, 1);
  gates_ = random(tokens * 2 * Hv, DType::bf16, 1.5f);
  weights_ = random(2 * Hv, DType::f32, 0.5f, 0.5f);
  out_ = random(tokens * Hv * 128, DType::bf16, 0);
  state_ = {.checkpoint = pool(std::array{seats, Hv, int64_t{128}, int64_t{128}}, state, 0.17f),
            .record_k = pool(std::array{seats, Hk, R, int64_t{128}}, DType::bf16, 1),
            .record_v = pool(std::array{seats, Hv, R, int64_t{128}}, DType::bf16, 1),
            .record_g = pool(std::array{seats, Hv, R, int64_t{1}}, DType::f32, 0.25f, -0.25f),
            .record_beta = pool(std::array{seats, Hv, R}, DType::f32, 0.5f, 0.5f)};
}

void* Layer::random(int64_t count, DType t, float scale, float offset) {
  arrays_.emplace_back(*table_.memory, static_cast<size_t>(count) * size_of(t));
  fill_uniform(arrays_.back().get(), count, t, scale, offset, seed_ + arrays_.size());
  return arrays_.back().get();
}

template <size_t N>
View<N> Layer::pool(const std::array<int64_t, N>& shape, DType t, float scale, float offset) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return dense<N>(random(count, t, scale, offset), t, shape);
}

template <class T>
T* Layer::up(const std::vector<T>& values) {
  arrays_.emplace_back(*table_.memory, values.size() * sizeof(T));
  table_.memory->write(arrays_.back().get(), values.data(), values.size() * sizeof(T));
  return static_cast<T*>(arrays_.back().get());
}

StepRows Layer::rows(int64_t n, int64_t folds) const {
  StepRows rows;
  std::mt19937_64 random(seed_);
  rows.seat.resize(shape_.B + 1);
  std::iota(rows.seat.begin(), rows.seat.end(), 0);
  std::shuffle(rows.seat.begin(), rows.seat.end(), random);
  rows.seat.resize(shape_.B);
  rows.start.push_back(0);
  for (int64_t b = 0; b < shape_.B; b++) {
    rows.start.push_back(static_cast<int32_t>((b + 1) * shape_.T));
    rows.folded.push_back(16 * static_cast<int64_t>(random() % 64));
    rows.first.push_back(rows.folded.back() + n);
    rows.fold_to.push_back(rows.folded.back() + folds);
  }
  return rows;
}

Rows Layer::upload(const StepRows& rows) {
  std::vector<int32_t> order(rows.seat.size());  // as a commit leaves it
  std::iota(order.begin(), order.end(), 0);
  const auto work = [&](int32_t b) {
    return kind_of_work({.folded = rows.folded[b], .pos = rows.first[b]}, rows.fold_to[b]);
  };
  std::stable_sort(order.begin(), order.end(), [&](int32_t b, int32_t c) { return work(b) < work(c); });
  return {.count = static_cast<int32_t>(shape_.B),
          .longest = static_cast<int32_t>(shape_.T),
          .start = up(rows.start),
          .seat = up(rows.seat),
          .first = up(rows.first),
          .folded = up(rows.folded),
          .fold_to = up(rows.fold_to),
          .order = up(order)};
}

View<3> Layer::heads(int64_t first, int64_t count) const {
  const int64_t channels = shape_.channels();
  return {
      static_cast<uint16_t*>(qkv_) + first * 128, DType::bf16, {shape_.B * shape_.T, count, 128}, {channels, 128, 1}};
}

GdnVerifyArgs Layer::verify(const Rows& rows, int64_t grain, bool exact) const {
  const int64_t tokens = shape_.B * shape_.T, Hk = shape_.Hk, Hv = shape_.Hv;
  const auto gates = static_cast<uint16_t*>(gates_);
  return {.rows = rows,
          .q = heads(0, Hk),
          .k = heads(Hk, Hk),
          .v = heads(2 * Hk, Hv),
          .g = {gates, DType::bf16, {tokens, Hv, 1}, {2 * Hv, 1, 1}},
          .beta = {gates + Hv, DType::bf16, {tokens, Hv}, {2 * Hv, 1}},
          .gates = {.A_log = static_cast<float*>(weights_), .dt_bias = static_cast<float*>(weights_) + Hv},
          .state = state_,
          .grain = grain,
          .out = dense<3>(out_, DType::bf16, {tokens, Hv, 128}),
          .bit_exact = exact};
}

ConvArgs Layer::conv(const Rows& rows, int64_t ring_rows) {
  const int64_t tokens = shape_.B * shape_.T, C = shape_.channels();
  return {.rows = rows,
          .x = dense<2>(qkv_, DType::bf16, {tokens, C}),
          .weight = pool(std::array{C, int64_t{4}}, DType::f32, 0.5f),
          .ring = pool(std::array{shape_.B + 1, ring_rows, C}, DType::bf16, 1),
          .out = pool(std::array{tokens, C}, DType::bf16, 0)};
}

View<5> Layer::snapshots() {
  if (!snapshots_) {
    const std::array shape{shape_.B + 1, shape_.T, shape_.Hv, int64_t{128}, int64_t{128}};
    snapshots_ = pool(shape, shape_.state, 0.17f);
  }
  return snapshots_;
}

SnapshotVerifyArgs Layer::snapshot_verify(const Rows& rows) {
  const GdnVerifyArgs like = verify(rows, 0, false);
  return {.rows = rows,
          .q = like.q,
          .k = like.k,
          .v = like.v,
          .g = like.g,
          .beta = like.beta,
          .gates = like.gates,
          .state = state_.checkpoint,
          .snapshots = snapshots(),
          .out = like.out};
}

SnapshotCommitArgs Layer::snapshot_commit(const Rows& rows, const int32_t* kept) {
  return {.rows = rows, .kept = kept, .state = state_.checkpoint, .snapshots = snapshots()};
}

CommitArgs Layer::commit(const StepRows& rows, const int32_t* kept, int64_t grain, FoldPolicy policy) {
  return {.count = static_cast<int32_t>(shape_.B),
          .seat = up(rows.seat),
          .kept = kept,
          .first = up(rows.first),
          .folded = up(rows.folded),
          .fold_to = up(rows.fold_to),
          .order = up(rows.seat),
          .F = grain,
          .policy = policy};
}

}  // namespace deltaring::bench
