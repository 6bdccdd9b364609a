// Where named tensors come from: a file, or memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace deltaring {

// One stored tensor, row-major. The bytes belong to the source and must not be written.
struct TensorRef {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  const void* data = nullptr;  // aligned to the element size
  size_t bytes = 0;
  std::string foreign_dtype;  // name of an element type that DType lacks ("I64", "F8_E5M2"); then dtype says nothing
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // Null when there is no such tensor. Valid as long as the source.
  virtual const TensorRef* find(std::string_view name) const = 0;
  // All of them, sorted.
  virtual std::vector<std::string> names() const = 0;
};

}  // namespace deltaring
