// A typed, strided window on memory somebody else owns. Strides count elements.
#pragma once
#include <array>
#include <cstdint>

#include "base/dtype.h"

namespace deltaring {

template <int N>
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::array<int64_t, N> shape{};
  std::array<int64_t, N> stride{};

  explicit operator bool() const { return data != nullptr; }

  template <class... I>
  int64_t offset(I... index) const {
    static_assert(sizeof...(I) <= N);
    int64_t sum = 0;
    int d = 0;
    ((sum += static_cast<int64_t>(index) * stride[d++]), ...);
    return sum;
  }
  void* address(int64_t element) const {
    return static_cast<char*>(data) + element * static_cast<int64_t>(size_of(dtype));
  }

  // Pointer to an element, for f32 views. Leading indices may be given alone.
  template <class... I>
  float* f32(I... index) const {
    return static_cast<float*>(data) + offset(index...);
  }

  // The view with its first index fixed.
  View<N - 1> operator[](int64_t i) const requires(N > 1) {
    View<N - 1> sub;
    sub.data = address(i * stride[0]);
    sub.dtype = dtype;
    for (int d = 1; d < N; d++) sub.shape[d - 1] = shape[d], sub.stride[d - 1] = stride[d];
    return sub;
  }

  // Rows [first, first + count) of the leading dimension.
  View rows(int64_t first, int64_t count) const {
    View sub = *this;
    sub.data = address(first * stride[0]);
    sub.shape[0] = count;
    return sub;
  }
};

// A dense row-major view of `data`.
template <int N>
View<N> dense(void* data, DType dtype, std::array<int64_t, N> shape) {
  View<N> view{data, dtype, shape, {}};
  int64_t step = 1;
  for (int d = N - 1; d >= 0; d--) view.stride[d] = step, step *= shape[d];
  return view;
}

// Columns [begin, begin + heads * step) of x [rows, columns] as heads of D, `step` apart.
inline View<3> heads_of(const View<2>& x, int64_t begin, int64_t heads, int64_t D, int64_t step) {
  return {
      .data = x.address(begin), .dtype = x.dtype, .shape = {x.shape[0], heads, D}, .stride = {x.stride[0], step, 1}};
}
inline View<3> heads_of(const View<2>& x, int64_t begin, int64_t heads, int64_t D) {
  return heads_of(x, begin, heads, D, D);
}

}  // namespace deltaring
