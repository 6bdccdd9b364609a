// Any bytes as a safetensors file: it is refused with Error, or every tensor lies inside the bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "base/error.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  try {
    const auto tensors = deltaring::SafeTensors::from_bytes(file, "fuzz");
    for (const std::string& name : tensors.names()) {
      const deltaring::TensorRef& tensor = *tensors.find(name);
      const auto* begin = static_cast<const std::byte*>(tensor.data);
      if (begin < file.data() || begin + tensor.bytes > file.data() + size) std::abort();
    }
  } catch (const deltaring::Error&) {
  }
  return 0;
}
