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

}  // namespace

void fill_uniform(void* to, int64_t count, DType t, float scale, float offset, uint64_t seed) {
  fill_kernel<<<1024, 256>>>(to, count, t, scale, offset, seed);
}

void stream_read(const void* from, size_t bytes, float* sink, cudaStream_t stream) {
  read_kernel<<<132 * 4, 512, 0, stream>>>(static_cast<const uint4*>(from), bytes / 16, sink);
}

Layer::Layer(const OpTable& table, const LayerCase& c, uint64_t seed) : table_(table), c_(c), seed_(seed) {
  const int64_t seats = c.B + 1, tokens = c.B * std::max<int64_t>(c.T, 1), channels = (2 * c.Hk + c.Hv) * 128;
  qkv_ = random(tokens * channels, DType::bf16, 1);
  gates_ = random(tokens * 2 * c.Hv, DType::bf16, 1.5f);
  weights_ = random(2 * c.Hv, DType::f32, 0.5f, 0.5f);
  out_ = random(tokens * c.Hv * 128, DType::bf16, 0);
  const auto pool = [&](auto shape, DType t, float scale, float offset) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return dense<shape.size()>(random(count, t, scale, offset), t, shape);
  };
  state_ = {.checkpoint = pool(std::array{seats, c.Hv, int64_t{128}, int64_t{128}}, c.state, 0.17f, 0),
            .record_k = pool(std::array{seats, c.Hk, c.R, int64_t{128}}, DType::bf16, 1, 0),
            .record_v = pool(std::array{seats, c.Hv, c.R, int64_t{128}}, DType::bf16, 1, 0),
            .record_g = pool(std::array{seats, c.Hv, c.R, int64_t{1}}, DType::f32, 0.25f, -0.25f),
            .record_beta = pool(std::array{seats, c.Hv, c.R}, DType::f32, 0.5f, 0.5f)};
}

void* Layer::random(int64_t count, DType t, float scale, float offset) {
  arrays_.emplace_back(*table_.memory, static_cast<size_t>(count) * size_of(t));
  fill_uniform(arrays_.back().get(), count, t, scale, offset, seed_ + arrays_.size());
  return arrays_.back().get();
}

StepRows Layer::rows() const {
  StepRows rows;
  std::mt19937_64 random(seed_);
  rows.seat.resize(c_.B + 1);
  std::iota(rows.seat.begin(), rows.seat.end(), 0);
  std::shuffle(rows.seat.begin(), rows.seat.end(), random);
  rows.seat.resize(c_.B);
  rows.start.push_back(0);
  for (int64_t b = 0; b < c_.B; b++) {
    rows.start.push_back(static_cast<int32_t>((b + 1) * c_.T));
    rows.folded.push_back(c_.F * static_cast<int64_t>(random() % 64));
    rows.first.push_back(rows.folded.back() + c_.n);
    rows.fold_to.push_back(c_.fold ? rows.folded.back() + c_.n / c_.F * c_.F : rows.folded.back());
  }
  return rows;
}

Rows Layer::upload(const StepRows& rows) {
  const auto up = [&](const auto& values) {
    using T = typename std::decay_t<decltype(values)>::value_type;
    arrays_.emplace_back(*table_.memory, values.size() * sizeof(T));
    table_.memory->write(arrays_.back().get(), values.data(), values.size() * sizeof(T));
    return static_cast<const T*>(arrays_.back().get());
  };
  return {.count = static_cast<int32_t>(c_.B),
          .longest = static_cast<int32_t>(c_.T),
          .start = up(rows.start),
          .seat = up(rows.seat),
          .first = up(rows.first),
          .folded = up(rows.folded),
          .fold_to = up(rows.fold_to)};
}

GdnVerifyArgs Layer::verify(const Rows& rows) const {
  const int64_t tokens = c_.B * c_.T, channels = (2 * c_.Hk + c_.Hv) * 128;
  const auto heads = [&](int64_t first, int64_t count) {
    return View<3>{static_cast<uint16_t*>(qkv_) + first * 128, DType::bf16, {tokens, count, 128}, {channels, 128, 1}};
  };
  const auto gates = static_cast<uint16_t*>(gates_);
  return {.rows = rows,
          .q = heads(0, c_.Hk),
          .k = heads(c_.Hk, c_.Hk),
          .v = heads(2 * c_.Hk, c_.Hv),
          .g = {gates, DType::bf16, {tokens, c_.Hv, 1}, {2 * c_.Hv, 1, 1}},
          .beta = {gates + c_.Hv, DType::bf16, {tokens, c_.Hv}, {2 * c_.Hv, 1}},
          .gates = {.A_log = static_cast<float*>(weights_), .dt_bias = static_cast<float*>(weights_) + c_.Hv},
          .state = state_,
          .grain = c_.F,
          .out = dense<3>(out_, DType::bf16, {tokens, c_.Hv, 128}),
          .bit_exact = c_.exact};
}

}  // namespace deltaring::bench
