// Counts what is not finite, tensor by tensor: the scan behind every `non_finite`, called for each field of a list of
// weights.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "model/block_fp8.h"
#include "model/weights.h"

namespace deltaring {

class NonFiniteScan {
 public:
  NonFiniteScan() = default;
  // Reports the fraction of `total` elements behind each tensor.
  NonFiniteScan(double total, std::function<void(double)> on_progress)
      : total_(total), on_progress_(std::move(on_progress)) {}

  void operator()(const std::string& name, const std::vector<float>& x) {
    count(name, x.data(), DType::f32, static_cast<int64_t>(x.size()));
  }
  template <int N>
  void operator()(const std::string& name, const View<N>& x) {
    int64_t size = 1;
    for (const int64_t extent : x.shape) size *= extent;
    count(name, x.data, x.dtype, size);
  }
  template <Scalable Field>
  void operator()(const std::string& name, const Field& x) {
    if (x.scales) (*this)(scales_name(name), x.scales);
    (*this)(name, x.values);
  }

  std::vector<NonFinite> list;  // of the tensors that are not all finite

 private:
  void count(const std::string& name, const void* data, DType dtype, int64_t size);

  double total_ = 1, done_ = 0;
  std::function<void(double)> on_progress_;
};

}  // namespace deltaring
