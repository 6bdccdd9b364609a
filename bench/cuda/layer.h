// One Gated-DeltaNet layer in device memory, as many times as it takes to be larger than the cache.
#pragma once
#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "ops/table.h"

namespace deltaring::bench {

// A layer of Qwen3.8-27B and what it costs to move: packed q, k, v rows behind the conv, raw gates, bf16 out.
struct LayerShape {
  int64_t B, T;  // rows, tokens of each
  DType state = DType::bf16;
  int64_t R = 32, Hk = 16, Hv = 48;

  int64_t channels() const { return (2 * Hk + Hv) * 128; }
  // Bytes.
  int64_t state_bytes() const { return Hv * 128 * 128 * static_cast<int64_t>(size_of(state)); }
  int64_t record_bytes() const { return (Hk + Hv) * 256 + Hv * 8; }
  int64_t token_bytes() const { return (channels() + Hv * 128) * 2 + Hv * 4; }  // q, k, v and gates in, outputs out
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
  Layer(const OpTable& table, const LayerShape& shape, uint64_t seed);

  // All rows at n records, `folds` of which the checkpoint shall take; folded is a multiple of 16.
  StepRows rows(int64_t n, int64_t folds) const;
  // Uploads row arrays, or what else is int32, which live as long as the layer.
  Rows upload(const StepRows& rows);
  int32_t* upload(const std::vector<int32_t>& values) { return up(values); }

  // Arguments over rows that lie on the device. Snapshots and the conv ring come to be when they are first asked for.
  GdnVerifyArgs verify(const Rows& rows, int64_t grain, bool exact) const;
  GdnFoldArgs fold(const Rows& rows, int64_t grain) const { return {.rows = rows, .state = state_, .grain = grain}; }
  ConvArgs conv(const Rows& rows, int64_t ring_rows);
  SnapshotVerifyArgs snapshot_verify(const Rows& rows);
  SnapshotCommitArgs snapshot_commit(const Rows& rows, const int32_t* kept);
  CommitArgs commit(const StepRows& rows, const int32_t* kept, int64_t grain, FoldPolicy policy);

 private:
  void* random(int64_t count, DType t, float scale, float offset = 0);
  template <size_t N>
  View<N> pool(const std::array<int64_t, N>& shape, DType t, float scale, float offset = 0);
  template <class T>
  T* up(const std::vector<T>& values);
  View<3> heads(int64_t first, int64_t count) const;  // of the packed rows
  View<5> snapshots();

  const OpTable& table_;
  LayerShape shape_;
  uint64_t seed_;
  std::vector<DeviceArray> arrays_;
  void *qkv_, *gates_, *weights_, *out_;
  GdnState state_;
  View<5> snapshots_;
};

// Fills device memory with uniform numbers in offset +- scale.
void fill_uniform(void* to, int64_t count, DType t, float scale, float offset, uint64_t seed);
// Reads `bytes` once.
void stream_read(const void* from, size_t bytes, float* sink, cudaStream_t stream);
// Reads and writes `bytes` in place.
void stream_update(void* memory, size_t bytes, cudaStream_t stream);

}  // namespace deltaring::bench
