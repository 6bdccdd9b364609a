// DLPack tensors as the views and arrays of the ops. Whatever a descriptor holds, the result is a view that the checks
// of the ops can judge, or an Error(invalid_argument) that starts with the op and the name of the tensor.
#pragma once
#include <dlpack/dlpack.h>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "base/view.h"
#include "ops/seats.h"

namespace deltaring::capi {

// The device_type, which may be no value of its enum.
int32_t type_of(const DLDevice& device);
std::string name_of(const DLDevice& device);  // "cpu", "cuda:0"

// The tensors of one call: an op on one device. Names are those of the contract with their symbolic shape, for example
// "q [tokens, Hk, K]".
class Tensors {
 public:
  Tensors(const char* op, DLDevice device) : op_(op), device_(device) {}

  const char* op() const { return op_; }
  bool on_host() const { return type_of(device_) == kDLCPU; }

  template <int N>
  View<N> view(const char* name, const DLTensor* tensor) const {
    View<N> view;
    read(name, tensor, N, view.shape.data(), view.stride.data());
    view.dtype = dtype(name, *tensor);
    view.data = data(name, *tensor, size_of(view.dtype));
    return view;
  }

  // A contiguous array of the shape given; null for a null tensor, since who needs it says so.
  const float* floats(const char* name, const DLTensor* tensor, std::initializer_list<int64_t> shape) const;
  int32_t* int32s(const char* name, const DLTensor* tensor, int64_t count) const;
  int64_t* int64s(const char* name, const DLTensor* tensor, int64_t count) const;

  // Any dtype and rank, whose first dimension is the seat and whose seats are dense.
  SeatTensor seats(const char* name, const DLTensor* tensor) const;

  // [bytes] uint8, contiguous, of the op's device or, as `on_host` then says, of the host.
  std::span<std::byte> bytes(const char* name, const DLTensor* tensor, bool& on_host) const;

  // The rows that a 1-dimensional tensor has one element each for.
  int32_t count(const char* name, const DLTensor* tensor) const;

 private:
  void check_place(const char* name, const DLTensor* tensor, const DLDevice& device) const;
  void read(const char* name, const DLTensor* tensor, int rank, int64_t* shape, int64_t* stride) const;
  void read_shape(const char* name, const DLTensor& tensor, int rank, int64_t* shape, int64_t* stride) const;
  DType dtype(const char* name, const DLTensor& tensor) const;
  void* data(const char* name, const DLTensor& tensor, size_t item) const;
  void* array(const char* name, const DLTensor* tensor, std::initializer_list<int64_t> shape, DLDataType type) const;

  const char* op_;
  DLDevice device_;
};

}  // namespace deltaring::capi
