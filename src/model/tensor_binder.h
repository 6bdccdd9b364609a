// What strict binding of named tensors is made of: fields are filled from a source, and everything that does not fit is
// collected and reported at once.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/view.h"
#include "model/tensor_source.h"

namespace deltaring {

class TensorBinder {
 protected:
  explicit TensorBinder(const TensorSource& source) : source_(source) {}

  // The tensor, if it is there with that shape; a problem otherwise. The name is expected from then on.
  const TensorRef* find(const std::string& name, const std::vector<int64_t>& shape);
  // Whether it is of an element type that can be bound; a problem otherwise.
  bool accepts(const std::string& name, const TensorRef& tensor, bool may_be_fp8);

  // A view of the source's memory, or an f32 copy.
  template <int N>
  static void assign(const TensorRef& tensor, View<N>& view) {
    std::array<int64_t, N> shape;
    std::ranges::copy(tensor.shape, shape.begin());
    view = dense<N>(const_cast<void*>(tensor.data), tensor.dtype, shape);
  }
  static void assign(const TensorRef& tensor, std::vector<float>& vector);

  void expect(const std::string& name) { expected_.insert(name); }
  bool is_expected(const std::string& name) const { return expected_.contains(name); }
  void add_problem(std::string problem) { problems_.push_back(std::move(problem)); }
  // Throws Error(corrupt), or Error(unsupported) when an element type was foreign, with the first problems, if there
  // are any: "WHAT, 2 problems: ...".
  void report(std::string_view what) const;

  const TensorSource& source_;

 private:
  std::set<std::string> expected_;
  std::vector<std::string> problems_;
  bool foreign_ = false;
};

}  // namespace deltaring
