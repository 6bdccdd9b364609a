// One Gated-DeltaNet layer in device memory, as many times as it takes to be larger than the cache.
#pragma once
#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "ops/table.h"

namespace deltaring::bench {

// What a launch is asked: a layer of Qwen3.8-27B, packed q, k, v rows behind the conv, raw gates, bf16 out.
struct LayerCase {
  int64_t B, T, n;  // rows, window, records of each
  bool fold = false, exact = false;
  DType state = DType::bf16;
  int64_t F = 16, R = 32, Hk = 16, Hv = 48;

  int64_t state_bytes() const { return Hv * 128 * 128 * static_cast<int64_t>(size_of(state)); }
  // Everything that moves for a row: the state, records, the window in and out, its records.
  int64_t row_bytes() const {
    const int64_t record = (Hk + Hv) * 256 + Hv * 8, token = (2 * Hk + 2 * Hv) * 256 + Hv * 4;
    return state_bytes() * (1 + fold) + n * record + T * (token + record);
  }
};

// Device memory that frees itself.
class DeviceArray {
 public:
  DeviceArray(const Memory& memory, size_t bytes) : memory_(&memory), data_(memory.allocate(bytes)) {}
  DeviceArray(DeviceArray&& other) noexcept : memory_(other.memory_), data_(std::exchange(other.data_, nullptr)) {}
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() {
    if (data_) memory_->free(data_);
  }
  void* get() const { return data_; }

 private:
  const Memory* memory_;
  void* data_;
};

// Row arrays of one step.
struct StepRows {
  std::vector<int32_t> start, seat;
  std::vector<int64_t> first, folded, fold_to;
};

class Layer {
 public:
  // Seats in random order; tokens, records and states are random numbers of their usual sizes.
  Layer(const OpTable& table, const LayerCase& c, uint64_t seed);

  StepRows rows() const;  // all rows at n records
  // A verify of rows that lie on the device.
  GdnVerifyArgs verify(const Rows& rows) const;
  // Uploads row arrays, which live as long as the layer.
  Rows upload(const StepRows& rows);

 private:
  void* random(int64_t count, DType t, float scale, float offset = 0);

  const OpTable& table_;
  LayerCase c_;
  uint64_t seed_;
  std::vector<DeviceArray> arrays_;
  void *qkv_, *gates_, *weights_, *out_;
  GdnState state_;
};

// Fills device memory with uniform numbers in offset +- scale.
void fill_uniform(void* to, int64_t count, DType t, float scale, float offset, uint64_t seed);
// Reads `bytes` once, the limit that verifies are held against.
void stream_read(const void* from, size_t bytes, float* sink, cudaStream_t stream);

}  // namespace deltaring::bench
