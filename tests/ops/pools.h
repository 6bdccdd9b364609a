// The tensors of all seats in one fenced block, and who may touch which byte of them during a call.
#pragma once
#include <fmt/format.h>

#include <string>
#include <vector>

#include "ops/fenced.h"

namespace deltaring::replay {

// What a seat holds of one tensor: [heads, slots, width], dense.
struct PoolShape {
  const char* name;
  DType dtype;
  int64_t heads, slots, width;

  size_t row_bytes() const { return width * size_of(dtype); }
  size_t head_bytes() const { return slots * row_bytes(); }
  size_t bytes() const { return heads * head_bytes(); }
};

class Pools {
 public:
  // A poisoned gap follows each seat's part of each tensor.
  Pools(const Device& device, const std::vector<PoolShape>& shapes, int64_t seats)
      : shapes_(shapes), offset_(shapes.size()), seats_(seats), memory_(device, plan()) {}

  int64_t seats() const { return seats_; }
  int count() const { return static_cast<int>(shapes_.size()); }
  const PoolShape& shape(int pool) const { return shapes_[pool]; }

  std::span<std::byte> block(int pool, int64_t seat) const {
    return memory_.bytes().subspan(offset_[pool] + seat * stride(pool), shapes_[pool].bytes());
  }
  std::span<std::byte> head(int pool, int64_t seat, int64_t head) const {
    return block(pool, seat).subspan(head * shapes_[pool].head_bytes(), shapes_[pool].head_bytes());
  }
  // The slot of a position in a ring of `slots`.
  std::span<std::byte> record(int pool, int64_t seat, int64_t head, int64_t position) const {
    const PoolShape& s = shapes_[pool];
    return block(pool, seat).subspan((head * s.slots + position % s.slots) * s.row_bytes(), s.row_bytes());
  }
  // [seats, inner...] for the backend.
  template <int N>
  View<N> view(int pool, const std::array<int64_t, N - 1>& inner) const {
    std::array<int64_t, N> shape{seats_};
    std::ranges::copy(inner, shape.begin() + 1);
    View<N> v = dense<N>(memory_.device() + offset_[pool], shapes_[pool].dtype, shape);
    v.stride[0] = stride(pool) / size_of(shapes_[pool].dtype);
    return v;
  }

  void fill_seat(int64_t seat, std::byte value) const {
    for (int pool = 0; pool < count(); pool++) fill(block(pool, seat), value);
  }
  void copy_seat(int64_t from, int64_t to) const {
    for (int pool = 0; pool < count(); pool++) std::ranges::copy(block(pool, from), block(pool, to).begin());
  }
  std::vector<std::byte> copy() const { return memory_.copy(); }
  static void fill(std::span<std::byte> region, std::byte value) {
    if (!region.empty()) std::memset(region.data(), static_cast<int>(value), region.size());
  }

  // Around a call: begin() after the poison is in, allow() what the call may have written, end() says what else it
  // wrote; empty = nothing.
  void begin() {
    before_.resize(memory_.bytes().size());
    std::memcpy(before_.data(), memory_.data(), before_.size());
    memory_.push();
  }
  void pull() const { memory_.pull(); }
  void allow(std::span<const std::byte> region) {
    if (!region.empty()) std::memcpy(before_.data() + (region.data() - memory_.data()), region.data(), region.size());
  }
  std::string end() const {
    if (!memory_.fences_intact()) return "the pools were written out of bounds";
    if (std::memcmp(memory_.data(), before_.data(), before_.size()) == 0) return {};
    const size_t at = std::mismatch(before_.begin(), before_.end(), memory_.data()).first - before_.begin();
    int pool = count() - 1;
    while (at < offset_[pool]) pool--;
    const size_t inside = at - offset_[pool];
    return fmt::format("{} of seat {} was written at byte {} where nothing may be", shapes_[pool].name,
                       inside / stride(pool), inside % stride(pool));
  }

  // Seats that a call must not see: poisoned for its time.
  void hide(const std::vector<bool>& present, std::byte poison) {
    hidden_ = present, saved_.resize(memory_.bytes().size());
    for (int64_t seat = 0; seat < seats_; seat++) {
      for (int pool = 0; pool < count() && !present[seat]; pool++) {
        const auto from = block(pool, seat);
        std::ranges::copy(from, saved_.begin() + (from.data() - memory_.data()));
        fill(from, poison);
      }
    }
  }
  void unhide() {
    for (int64_t seat = 0; seat < static_cast<int64_t>(hidden_.size()); seat++) {
      for (int pool = 0; pool < count() && !hidden_[seat]; pool++) {
        const auto to = block(pool, seat);
        std::copy_n(saved_.begin() + (to.data() - memory_.data()), to.size(), to.begin());
      }
    }
    hidden_.clear();
  }

 private:
  size_t stride(int pool) const { return (shapes_[pool].bytes() + 127) / 64 * 64; }
  size_t plan() {
    size_t bytes = 0;
    for (int pool = 0; pool < count(); pool++) offset_[pool] = bytes, bytes += seats_ * stride(pool);
    return bytes;
  }

  std::vector<PoolShape> shapes_;
  std::vector<size_t> offset_;
  int64_t seats_;
  Buffer memory_;
  std::vector<std::byte> before_, saved_;
  std::vector<bool> hidden_;  // seats that were present
};

}  // namespace deltaring::replay
