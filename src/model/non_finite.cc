#include "model/non_finite.h"

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

}  // namespace

void NonFiniteScan::count(const std::string& name, const void* data, DType dtype, int64_t size) {
  const int64_t bad = count_non_finite(data, dtype, size);
  if (bad > 0) list.push_back({name, bad, size});
  done_ += static_cast<double>(size);
  if (on_progress_) on_progress_(done_ / total_);
}

std::vector<NonFinite> non_finite(const Weights& weights, const std::function<void(double)>& on_progress) {
  double total = 0;
  for (const TensorSpec& tensor : bound_tensors(weights)) total += static_cast<double>(tensor.elements());
  if (on_progress) on_progress(0);
  NonFiniteScan scan(total, on_progress);
  visit_all(weights,
            [&](const std::string& name, const std::vector<int64_t>&, const auto& field) { scan(name, field); });
  return std::move(scan.list);
}

}  // namespace deltaring
