// Memory under watch: poison on both sides, in every gap, and wherever nothing has been written yet.
#pragma once
#include <algorithm>
#include <cstring>
#include <numeric>
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

// Token rows with a poisoned gap behind each: [rows, columns] of any dtype.
class Matrix {
 public:
  Matrix(const Device& device, int64_t rows, int64_t columns, DType dtype = DType::f32)
      : rows_(rows),
        columns_(columns),
        dtype_(dtype),
        pitch_(columns + device.gap() / static_cast<int64_t>(size_of(dtype))),
        buffer_(device, rows * pitch_ * size_of(dtype)) {}

  // Of an f32 matrix.
  float* row(int64_t i) const { return reinterpret_cast<float*>(buffer_.data()) + i * pitch_; }
  std::vector<float> values(int64_t i) const {
    std::vector<float> to(columns_);
    load_floats(buffer_.data(), dtype_, i * pitch_, columns_, to.data());
    return to;
  }
  float at(int64_t i, int64_t c) const { return load_as_float(buffer_.data(), dtype_, i * pitch_ + c); }
  void set_row(int64_t i, const float* values) const {
    store_floats(buffer_.data(), dtype_, i * pitch_, columns_, values);
  }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  DType dtype() const { return dtype_; }
  View<2> view() const { return {buffer_.device(), dtype_, {rows_, columns_}, {pitch_, 1}}; }
  // Columns [first, first + heads * width) as [rows, heads, width].
  View<3> heads(int64_t first, int64_t heads, int64_t width) const {
    return {view().address(first), dtype_, {rows_, heads, width}, {pitch_, width, 1}};
  }
  void push() const { buffer_.push(); }
  void pull() const { buffer_.pull(); }
  std::vector<std::byte> copy() const { return buffer_.copy(); }
  bool equals(const std::vector<std::byte>& bytes) const {
    return bytes.empty() || std::memcmp(buffer_.data(), bytes.data(), bytes.size()) == 0;
  }
  bool gaps_intact() const {
    const auto size = static_cast<int64_t>(size_of(dtype_));
    bool intact = buffer_.fences_intact();
    for (int64_t i = 0; i < rows_; i++) {
      const std::byte *gap = buffer_.data() + (i * pitch_ + columns_) * size,
                      *end = buffer_.data() + (i + 1) * pitch_ * size;
      intact = intact && std::all_of(gap, end, [](std::byte b) { return b == kNaN; });
    }
    return intact;
  }

 private:
  int64_t rows_, columns_;
  DType dtype_;
  int64_t pitch_;  // elements from row to row
  Buffer buffer_;
};

// What lies behind a Rows. A row without a seat has cursors that nobody may use.
class RowArrays {
 public:
  RowArrays(const Device& device, size_t rows)
      : capacity_(rows), memory_(device, rows * 3 * sizeof(int64_t) + (4 * rows + 1) * sizeof(int32_t)) {
    at(memory_.data()).start[0] = 0;
  }
  void add(int32_t seat, Cursor cursor, int64_t fold_to, int32_t length, int32_t kept) {
    const Arrays to = at(memory_.data());
    const bool seated = seat >= 0;
    const int32_t b = count_++;
    to.start[b + 1] = to.start[b] + length, to.seat[b] = seat, to.kept[b] = seated ? kept : -99;
    to.first[b] = seated ? cursor.pos : -77;
    to.folded[b] = seated ? cursor.folded : int64_t{1} << 60;
    to.fold_to[b] = seated ? fold_to : -12345;
    longest_ = std::max(longest_, length);
  }
  // Whatever a row and the bounds of its tokens shall be, impossible or not.
  void set(int32_t b, int32_t seat, const std::vector<int32_t>& start) const {
    at(memory_.data()).seat[b] = seat;
    std::ranges::copy(start, at(memory_.data()).start);
  }
  // The last row has the first turn.
  void push() const {
    std::iota(std::reverse_iterator(at(memory_.data()).order + count_), std::reverse_iterator(at(memory_.data()).order),
              0);
    memory_.push();
  }
  void pull() const { memory_.pull(); }

  // The numbers as the test sees them, and as the backend does after a push.
  Rows rows() const { return rows(at(memory_.data())); }
  Rows device() const { return rows(at(memory_.device())); }
  const int32_t* kept() const { return at(memory_.device()).kept; }
  std::vector<int32_t> starts() const { return {rows().start, rows().start + count_ + 1}; }
  int64_t tokens() const { return rows().start[count_]; }

 private:
  struct Arrays {
    int64_t *first, *folded, *fold_to;  // [capacity]
    int32_t *start, *seat, *kept;       // [capacity + 1], [capacity], [capacity]
    int32_t* order;                     // [capacity]
  };
  Arrays at(std::byte* memory) const {
    auto* wide = reinterpret_cast<int64_t*>(memory);
    auto* narrow = reinterpret_cast<int32_t*>(wide + 3 * capacity_);
    return {wide,
            wide + capacity_,
            wide + 2 * capacity_,
            narrow,
            narrow + capacity_ + 1,
            narrow + 2 * capacity_ + 1,
            narrow + 3 * capacity_ + 1};
  }
  Rows rows(const Arrays& a) const {
    return {.count = count_,
            .longest = longest_,
            .start = a.start,
            .seat = a.seat,
            .first = a.first,
            .folded = a.folded,
            .fold_to = a.fold_to,
            .order = a.order};
  }

  size_t capacity_;
  Buffer memory_;
  int32_t count_ = 0, longest_ = 0;
};

}  // namespace deltaring::replay
