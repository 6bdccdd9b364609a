// Tensors for op tests: strided, in exactly as much heap memory as they span, with every gap watched.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/view.h"
#include "ops/table.h"

namespace deltaring::testing {

// Bytes of value 0xff, NaN in every dtype: what is used without having been written shows, and so does what was written
// where nothing belongs. `gap` elements lie between neighbours of every dimension but the last.
template <int N>
class Tensor {
 public:
  Tensor(DType dtype, std::array<int64_t, N> shape, int64_t gap = 0) {
    view_ = dense<N>(nullptr, dtype, shape);
    for (int d = N - 2; d >= 0; d--) view_.stride[d] = view_.stride[d + 1] * shape[d + 1] + gap;
    elements_ = 1;
    for (int d = 0; d < N; d++) elements_ = shape[d] && elements_ ? elements_ + (shape[d] - 1) * view_.stride[d] : 0;
    bytes_ = std::make_unique<std::byte[]>(elements_ * size_of(dtype));
    std::memset(bytes_.get(), 0xff, elements_ * size_of(dtype));
    view_.data = bytes_.get();
  }
  Tensor(const Tensor& other) : Tensor(other.view_.dtype, other.view_.shape) { *this = other; }
  Tensor& operator=(const Tensor& other) {
    view_ = other.view_, elements_ = other.elements_;
    bytes_ = std::make_unique<std::byte[]>(elements_ * size_of(view_.dtype));
    std::memcpy(bytes_.get(), other.bytes_.get(), elements_ * size_of(view_.dtype));
    view_.data = bytes_.get();
    return *this;
  }

  const View<N>& view() const { return view_; }
  double operator()(auto... i) const { return load_as_float(view_.data, view_.dtype, view_.offset(i...)); }
  void set(float x, auto... i) { store_from_float(view_.data, view_.dtype, view_.offset(i...), x); }

  // visit(offset) for every element.
  template <class Visit>
  void each(const Visit& visit) const {
    walk(0, 0, visit);
  }

  Tensor& fill(std::mt19937& random, float low = -1, float high = 1) {
    std::uniform_real_distribution<float> uniform(low, high);
    each([&](int64_t offset) { store_from_float(view_.data, view_.dtype, offset, uniform(random)); });
    return *this;
  }

  // Same bits, gaps included.
  bool operator==(const Tensor& other) const {
    return elements_ == other.elements_ &&
           std::memcmp(bytes_.get(), other.bytes_.get(), elements_ * size_of(view_.dtype)) == 0;
  }

  bool gaps_untouched() const {
    std::vector<bool> inside(elements_);
    each([&](int64_t offset) { inside[offset] = true; });
    const size_t size = size_of(view_.dtype);
    for (int64_t i = 0; i < elements_; i++) {
      const auto written = [](std::byte b) { return b != std::byte{0xff}; };
      if (!inside[i] && std::any_of(&bytes_[i * size], &bytes_[i * size] + size, written)) return false;
    }
    return true;
  }

 private:
  template <class Visit>
  void walk(int d, int64_t offset, const Visit& visit) const {
    for (int64_t i = 0; i < view_.shape[d]; i++) {
      if (d == N - 1) {
        visit(offset + i * view_.stride[d]);
      } else {
        walk(d + 1, offset + i * view_.stride[d], visit);
      }
    }
  }

  View<N> view_;
  int64_t elements_ = 0;
  std::unique_ptr<std::byte[]> bytes_;
};

inline bool same_bits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

constexpr double kEps = 0x1p-23;  // distance from 1 to the next f32

}  // namespace deltaring::testing
