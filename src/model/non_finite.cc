#include <type_traits>

#include "model/block_fp8.h"
#include "model/weight_list.h"

namespace deltaring {

namespace {

// Elements whose bits in `mask` are all set: the exponent, which makes NaNs and infinities of every IEEE-like format,
// or all but the sign of an f8_e4m3.
template <class Bits>
int64_t count_set(const void* data, int64_t size, Bits mask) {
  const Bits* bits = static_cast<const Bits*>(data);
  int64_t count = 0;
  for (int64_t i = 0; i < size; i++) count += (bits[i] & mask) == mask;
  return count;
}

int64_t count_non_finite(const void* data, DType dtype, int64_t size) {
  switch (dtype) {
    case DType::f32:
      return count_set<uint32_t>(data, size, 0x7f800000u);
    case DType::bf16:
      return count_set<uint16_t>(data, size, 0x7f80u);
    case DType::f16:
      return count_set<uint16_t>(data, size, 0x7c00u);
    case DType::f8_e4m3:
      return count_set<uint8_t>(data, size, 0x7fu);
  }
  return 0;
}

class Scan {
 public:
  Scan(double total, const std::function<void(double)>& on_progress) : total_(total), on_progress_(on_progress) {}

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

  std::vector<NonFinite> list;

 private:
  void count(const std::string& name, const void* data, DType dtype, int64_t size) {
    const int64_t bad = count_non_finite(data, dtype, size);
    if (bad > 0) list.push_back({name, bad, size});
    done_ += static_cast<double>(size);
    if (on_progress_) on_progress_(done_ / total_);
  }

  const double total_;
  const std::function<void(double)>& on_progress_;
  double done_ = 0;
};

}  // namespace

std::vector<NonFinite> non_finite(const Weights& weights, const std::function<void(double)>& on_progress) {
  double total = 0;
  for (const TensorSpec& tensor : bound_tensors(weights)) total += static_cast<double>(tensor.elements());
  if (on_progress) on_progress(0);
  Scan scan(total, on_progress);
  visit_all(weights,
            [&](const std::string& name, const std::vector<int64_t>&, const auto& field) { scan(name, field); });
  return std::move(scan.list);
}

}  // namespace deltaring
