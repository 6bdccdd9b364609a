#include "capi/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace deltaring::capi {

namespace {

std::string name_of(DLDataType type) {
  const char* kind = type.code == kDLInt      ? "int"
                     : type.code == kDLUInt   ? "uint"
                     : type.code == kDLFloat  ? "float"
                     : type.code == kDLBfloat ? "bfloat"
                                              : nullptr;
  std::string name = kind ? fmt::format("{}{}", kind, type.bits) : fmt::format("of dtype code {}", type.code);
  return type.lanes == 1 ? name : fmt::format("{}x{}", name, type.lanes);
}

bool same(DLDataType a, DLDataType b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

// Host memory that is pinned for a device is host memory.
bool lies_on(const DLDevice& memory, const DLDevice& device) {
  const int32_t type = type_of(memory), wanted = type_of(device);
  if (wanted == kDLCPU) return type == kDLCPU || type == kDLCUDAHost;
  return type == wanted && memory.device_id == device.device_id;
}

// Whether every element can be addressed: the offsets between them fit, in bytes of any dtype.
bool addressable(int rank, const int64_t* shape, const int64_t* stride) {
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 16;
  int64_t span = 0;
  for (int d = 0; d < rank; d++) {
    int64_t reach = 0;
    if (shape[d] <= 1) continue;
    if (stride[d] == std::numeric_limits<int64_t>::min()) return false;
    if (__builtin_mul_overflow(shape[d] - 1, std::abs(stride[d]), &reach)) return false;
    if (__builtin_add_overflow(span, reach, &span) || span > kFar) return false;
  }
  return true;
}

}  // namespace

int32_t type_of(const DLDevice& device) {
  static_assert(sizeof(device.device_type) == sizeof(int32_t));
  int32_t type;
  std::memcpy(&type, &device.device_type, sizeof type);
  return type;
}

std::string name_of(const DLDevice& device) {
  switch (const int32_t type = type_of(device)) {
    case kDLCPU:
      return "cpu";
    case kDLCUDA:
      return fmt::format("cuda:{}", device.device_id);
    case kDLCUDAHost:
      return "pinned cpu memory";
    default:
      return fmt::format("device type {}:{}", type, device.device_id);
  }
}

void Tensors::check_place(const char* name, const DLTensor* tensor, const DLDevice& device) const {
  check(tensor, "{}: {} is missing", op_, name);
  check(lies_on(tensor->device, device), "{}: {} is on {}, want {}: the tensors of a call lie where it computes", op_,
        name, name_of(tensor->device), name_of(device));
}

void Tensors::read(const char* name, const DLTensor* tensor, int rank, int64_t* shape, int64_t* stride) const {
  check_place(name, tensor, device_);
  read_shape(name, *tensor, rank, shape, stride);
}

void Tensors::read_shape(const char* name, const DLTensor& tensor, int rank, int64_t* shape, int64_t* stride) const {
  check(tensor.ndim == rank, "{}: {} has {} dimensions, want {}", op_, name, tensor.ndim, rank);
  check(tensor.shape, "{}: {} has no shape", op_, name);
  std::copy_n(tensor.shape, rank, shape);
  const bool empty = std::any_of(shape, shape + rank, [](int64_t size) { return size <= 0; });
  bool fits = true;
  int64_t step = 1;
  for (int d = rank - 1; d >= 0; d--) {
    stride[d] = tensor.strides ? tensor.strides[d] : step;
    if (!empty && __builtin_mul_overflow(step, shape[d], &step)) fits = false;
  }
  check(empty || (fits && addressable(rank, shape, stride)), "{}: {} reaches beyond all memory", op_, name);
}

SeatTensor Tensors::seats(const char* name, const DLTensor* tensor) const {
  constexpr int kMostRank = 8;
  check_place(name, tensor, device_);
  const int rank = tensor->ndim;
  const DLDataType type = tensor->dtype;
  const int64_t bits = int64_t{type.bits} * type.lanes;
  check(rank >= 1 && rank <= kMostRank, "{}: {} has {} dimensions, want 1 to {}", op_, name, rank, kMostRank);
  check(bits > 0 && bits % 8 == 0 && bits <= 128, "{}: {} is {}, want elements of whole bytes", op_, name,
        name_of(type));
  int64_t shape[kMostRank], stride[kMostRank], step = 1;
  read_shape(name, *tensor, rank, shape, stride);
  for (int d = 0; d < rank; d++)
    check(shape[d] >= 0, "{}: {} has {} in dimension {}, want >= 0", op_, name, shape[d], d);
  void* at = data(name, *tensor, 1);
  if (std::find(shape, shape + rank, 0) != shape + rank) return {.data = at, .seats = shape[0]};
  for (int d = rank - 1; d > 0; step *= shape[d], d--) {
    check(stride[d] == step || shape[d] == 1, "{}: {} is not dense within a seat: stride {} in dimension {}, want {}",
          op_, name, stride[d], d, step);
  }
  const int64_t size = bits / 8;
  return {.data = at, .seats = shape[0], .pitch = shape[0] > 1 ? stride[0] * size : 0, .bytes = step * size};
}

std::span<std::byte> Tensors::bytes(const char* name, const DLTensor* tensor, bool& on_host) const {
  constexpr DLDevice kHost{kDLCPU, 0};
  on_host = tensor && lies_on(tensor->device, kHost);
  check_place(name, tensor, on_host ? kHost : device_);
  int64_t size, stride;
  read_shape(name, *tensor, 1, &size, &stride);
  check(same(tensor->dtype, {kDLUInt, 8, 1}), "{}: {} is {}, want uint8", op_, name, name_of(tensor->dtype));
  check(size >= 0, "{}: {} has {} bytes, want >= 0", op_, name, size);
  check(stride == 1 || size <= 1, "{}: {} is not contiguous", op_, name);
  return {static_cast<std::byte*>(data(name, *tensor, 1)), static_cast<size_t>(size)};
}

DType Tensors::dtype(const char* name, const DLTensor& tensor) const {
  const DLDataType type = tensor.dtype;
  if (same(type, {kDLFloat, 32, 1})) return DType::f32;
  if (same(type, {kDLBfloat, 16, 1})) return DType::bf16;
  if (same(type, {kDLFloat, 16, 1})) return DType::f16;
  fail(ErrorKind::invalid_argument, "{}: {} is {}, want float32, bfloat16 or float16", op_, name, name_of(type));
}

void* Tensors::data(const char* name, const DLTensor& tensor, size_t item) const {
  if (!tensor.data) return nullptr;
  char* data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  check(reinterpret_cast<uintptr_t>(data) % item == 0, "{}: {} is not aligned to the {} bytes of an element", op_, name,
        item);
  return data;
}

void* Tensors::array(const char* name, const DLTensor* tensor, std::initializer_list<int64_t> want,
                     DLDataType type) const {
  if (!tensor) return nullptr;
  const int rank = static_cast<int>(want.size());
  int64_t shape[4], stride[4], step = 1;
  read(name, tensor, rank, shape, stride);
  check(same(tensor->dtype, type), "{}: {} is {}, want {}", op_, name, name_of(tensor->dtype), name_of(type));
  for (int d = rank - 1; d >= 0; d--) {
    const int64_t size = want.begin()[d];
    check(shape[d] == size, "{}: {} has {} in dimension {}, want {}", op_, name, shape[d], d, size);
    check(stride[d] == step || size <= 1, "{}: {} is not contiguous: stride {} in dimension {}, want {}", op_, name,
          stride[d], d, step);
    step *= size;
  }
  void* at = data(name, *tensor, type.bits / 8);
  check(at || step == 0, "{}: {} is null", op_, name);
  return at;
}

const float* Tensors::floats(const char* name, const DLTensor* tensor, std::initializer_list<int64_t> shape) const {
  return static_cast<const float*>(array(name, tensor, shape, {kDLFloat, 32, 1}));
}

int32_t* Tensors::int32s(const char* name, const DLTensor* tensor, int64_t count) const {
  return static_cast<int32_t*>(array(name, tensor, {count}, {kDLInt, 32, 1}));
}

int64_t* Tensors::int64s(const char* name, const DLTensor* tensor, int64_t count) const {
  return static_cast<int64_t*>(array(name, tensor, {count}, {kDLInt, 64, 1}));
}

int32_t Tensors::count(const char* name, const DLTensor* tensor) const {
  int64_t size, stride;
  read(name, tensor, 1, &size, &stride);
  check(size >= 0 && size < std::numeric_limits<int32_t>::max(), "{}: {} has {} rows, want [0, 2^31)", op_, name, size);
  return static_cast<int32_t>(size);
}

}  // namespace deltaring::capi
