// Memory under watch: poison on both sides, in every gap, and wherever nothing has been written yet.
#pragma once
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/view.h"
#include "ops/cursor.h"
#include "ops/device.h"
#include "ops/rows.h"

namespace deltaring::replay {

// NaN in every element type, and the largest finite values.
inline constexpr std::byte kNaN{0xff}, kHuge{0x7f};

// Bytes between fences, all poison at first.
class Buffer {
 public:
  Buffer(const Device& device, size_t bytes, std::byte poison = kNaN)
      : poison_(poison), block_(device.allocate(bytes + 2 * kFence)), size_(bytes) {
    std::memset(block_->host(), static_cast<int>(poison_), size_ + 2 * kFence);
  }
  std::byte* data() const { return block_->host() + kFence; }
  std::byte* device() const { return block_->device() + kFence; }
  std::span<std::byte> bytes() const { return {data(), size_}; }
  std::vector<std::byte> copy() const { return {data(), data() + size_}; }
  void push() const { block_->push(); }
  void pull() const { block_->pull(); }
  bool fences_intact() const { return is_poison(block_->host(), kFence) && is_poison(data() + size_, kFence); }

 private:
  static constexpr size_t kFence = 256;
  bool is_poison(const std::byte* p, size_t count) const {
    return std::all_of(p, p + count, [this](std::byte b) { return b == poison_; });
  }

  std::byte poison_;
  std::unique_ptr<Block> block_;
  size_t size_;
};

// Token rows with a poisoned gap behind each: [rows, columns] f32.
class Matrix {
 public:
  Matrix(const Device& device, int64_t rows, int64_t columns)
      : rows_(rows), columns_(columns), gap_(device.gap), buffer_(device, rows * (columns + gap_) * sizeof(float)) {}

  float* row(int64_t i) const { return reinterpret_cast<float*>(buffer_.data()) + i * (columns_ + gap_); }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  View<2> view() const { return {buffer_.device(), DType::f32, {rows_, columns_}, {columns_ + gap_, 1}}; }
  // Columns [first, first + heads * width) as [rows, heads, width].
  View<3> heads(int64_t first, int64_t heads, int64_t width) const {
    return {view().f32(0, first), DType::f32, {rows_, heads, width}, {columns_ + gap_, width, 1}};
  }
  void push() const { buffer_.push(); }
  void pull() const { buffer_.pull(); }
  std::vector<std::byte> copy() const { return buffer_.copy(); }
  bool equals(const std::vector<std::byte>& bytes) const {
    return bytes.empty() || std::memcmp(buffer_.data(), bytes.data(), bytes.size()) == 0;
  }
  bool gaps_intact() const {
    bool intact = buffer_.fences_intact();
    for (int64_t i = 0; i < rows_; i++) {
      const auto* gap = reinterpret_cast<const std::byte*>(row(i) + columns_);
      intact = intact && std::all_of(gap, gap + gap_ * sizeof(float), [](std::byte b) { return b == kNaN; });
    }
    return intact;
  }

 private:
  int64_t rows_, columns_, gap_;
  Buffer buffer_;
};

// What lies behind a Rows, in the host's memory. A row without a seat has cursors that nobody may use.
class RowArrays {
 public:
  explicit RowArrays(size_t rows) {
    start_.reserve(rows + 1), start_.push_back(0), seat_.reserve(rows), kept_.reserve(rows);
    first_.reserve(rows), folded_.reserve(rows), fold_to_.reserve(rows);
  }
  void add(int32_t seat, Cursor cursor, int64_t fold_to, int32_t length, int32_t kept) {
    start_.push_back(start_.back() + length), seat_.push_back(seat), kept_.push_back(seat < 0 ? -99 : kept);
    first_.push_back(seat < 0 ? -77 : cursor.pos);
    folded_.push_back(seat < 0 ? int64_t{1} << 60 : cursor.folded);
    fold_to_.push_back(seat < 0 ? -12345 : fold_to);
  }
  Rows rows() const {
    return {.count = static_cast<int32_t>(seat_.size()),
            .start = start_.data(),
            .seat = seat_.data(),
            .first = first_.data(),
            .folded = folded_.data(),
            .fold_to = fold_to_.data()};
  }
  const int32_t* kept() const { return kept_.data(); }
  const std::vector<int32_t>& start() const { return start_; }
  int64_t tokens() const { return start_.back(); }

 private:
  std::vector<int32_t> start_, seat_, kept_;
  std::vector<int64_t> first_, folded_, fold_to_;
};

}  // namespace deltaring::replay
