// What every op asks of its views. `name` is an argument with its symbolic shape as the contract writes it, for example
// "k [tokens, Hk, K]"; every failure is an Error(invalid_argument) that starts with op and name.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/view.h"

namespace deltaring {

// Throws: dimension d of a view, "Hk" for 1 of the above, has a `field` (size or stride) that is not as wanted.
[[noreturn]] inline void refuse(std::string_view op, std::string_view name, int d, const char* field, int64_t has,
                                const std::string& want) {
  std::string_view symbol = name.substr(name.find('[') + 1);
  for (; d > 0; d--) symbol.remove_prefix(symbol.find(", ") + 2);
  symbol = symbol.substr(0, symbol.find_first_of(",]"));
  fail(ErrorKind::invalid_argument, "{}: {} has {}{} in {}, want {}", op, name, field, has, symbol, want);
}

template <int N>
bool has_elements(const View<N>& view) {
  return std::ranges::find(view.shape, 0) == view.shape.end();
}

// A shape of sizes >= 0, and memory if there are elements. Where any size serves, want the view's.
template <int N>
void check_shape(const char* op, const char* name, const View<N>& view, const decltype(View<N>::shape)& want) {
  for (int d = 0; d < N; d++) {
    if (view.shape[d] < 0) refuse(op, name, d, "", view.shape[d], ">= 0");
    if (view.shape[d] != want[d]) refuse(op, name, d, "", view.shape[d], std::to_string(want[d]));
  }
  check(view.data || !has_elements(view), "{}: {} is null", op, name);
}

template <int N>
void check_contiguous(const char* op, const char* name, const View<N>& view) {
  const bool contiguous = view.stride[N - 1] == 1 || view.shape[N - 1] == 1 || !has_elements(view);
  if (!contiguous) refuse(op, name, N - 1, "stride ", view.stride[N - 1], "1");
}

// The dtype as well; where any serves that has values without scales, want the view's.
template <int N>
void check_strided(const char* op, const char* name, const View<N>& view, DType dtype,
                   const decltype(View<N>::shape)& want) {
  check(view.dtype != DType::f8_e4m3, "{}: {} is {}, want float32, bfloat16 or float16", op, name, name_of(view.dtype));
  check(view.dtype == dtype, "{}: {} is {}, want {}", op, name, name_of(view.dtype), name_of(dtype));
  check_shape(op, name, view, want);
}

// The last dimension contiguous as well.
template <int N>
void check_view(const char* op, const char* name, const View<N>& view, DType dtype,
                const decltype(View<N>::shape)& want) {
  check_strided(op, name, view, dtype, want);
  check_contiguous(op, name, view);
}

// For writing: no two elements share memory, since each stride steps over all that the smaller ones span.
template <int N>
void check_output(const char* op, const char* name, const View<N>& view, DType dtype,
                  const decltype(View<N>::shape)& want) {
  check_view(op, name, view, dtype, want);
  std::array<int, N> order;  // ascending strides, the inner dimension first, 0 last
  std::iota(order.rbegin(), order.rend(), 0);
  std::ranges::stable_sort(order, {}, [&](int d) { return static_cast<uint64_t>(std::abs(view.stride[d])) - 1; });
  int64_t span = 1;
  for (const int d : order) {
    const int64_t step = std::abs(view.stride[d]);
    if (view.shape[d] == 1 || !has_elements(view)) continue;
    if (step < span)
      refuse(op, name, d, "stride ", view.stride[d], fmt::format("at least {}: it overlaps itself", span));
    span += (view.shape[d] - 1) * step;
  }
}

}  // namespace deltaring
