#include "model/tensor_binder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>

#include "base/error.h"

namespace deltaring {

namespace {

constexpr size_t kListed = 5;  // problems named in one message

}  // namespace

const TensorRef* TensorBinder::find(const std::string& name, const std::vector<int64_t>& shape) {
  expect(name);
  const TensorRef* tensor = source_.find(name);
  if (!tensor) {
    add_problem(name + " is missing");
  } else if (tensor->shape != shape) {
    add_problem(
        fmt::format("{} has shape [{}], expected [{}]", name, fmt::join(tensor->shape, ", "), fmt::join(shape, ", ")));
    tensor = nullptr;
  }
  return tensor;
}

bool TensorBinder::accepts(const std::string& name, const TensorRef& tensor, bool may_be_fp8) {
  const bool is_fp8 = tensor.foreign_dtype.empty() && tensor.dtype == DType::f8_e4m3;
  if (is_fp8 ? may_be_fp8 : tensor.foreign_dtype.empty()) return true;
  add_problem(fmt::format("{} has element type {}, supported: F32, BF16, F16{}", name,
                          is_fp8 ? "F8_E4M3" : tensor.foreign_dtype, may_be_fp8 ? ", F8_E4M3" : ""));
  foreign_ = true;
  return false;
}

void TensorBinder::assign(const TensorRef& tensor, std::vector<float>& vector) {
  vector.resize(tensor.bytes / size_of(tensor.dtype));
  load_floats(tensor.data, tensor.dtype, 0, static_cast<int64_t>(vector.size()), vector.data());
}

void TensorBinder::report(std::string_view what) const {
  if (problems_.empty()) return;
  const size_t listed = std::min(problems_.size(), kListed);
  fail(foreign_ ? ErrorKind::unsupported : ErrorKind::corrupt, "{}, {} {}: {}{}", what, problems_.size(),
       problems_.size() == 1 ? "problem" : "problems",
       fmt::join(problems_.begin(), problems_.begin() + static_cast<std::ptrdiff_t>(listed), "; "),
       problems_.size() > listed ? "; ..." : "");
}

}  // namespace deltaring
