// Weights in the safetensors format, memory-mapped: an 8-byte little-endian length N, N bytes of JSON that map each
// tensor's name to {dtype, shape, data_offsets: [begin, end)}, then the data. Tensors are views of the mapping.
#pragma once
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "model/tensor_source.h"

namespace deltaring {

// Everything a file claims is checked before any of it is believed: that the header fits the file, names are unique,
// sizes are those of shape and dtype, and the tensors tile the data without overlap, hole or rest. Failures are
// Error(corrupt) naming the file and the tensor.
class SafeTensors : public TensorSource {
 public:
  // The weights of a model folder: model.safetensors or, without it, the shards of model.safetensors.index.json. The
  // index and the shards must agree about every tensor. Throws Error(not_found) naming a missing file.
  static SafeTensors open(const std::filesystem::path& folder);
  // One file.
  static SafeTensors open_file(const std::filesystem::path& path);
  // The content of one file, which the caller keeps alive; `where` names it in messages.
  static SafeTensors from_bytes(std::span<const std::byte> file, const std::string& where);

  const TensorRef* find(std::string_view name) const override;
  std::vector<std::string> names() const override;

 private:
  std::vector<MappedFile> files_;
  std::map<std::string, TensorRef, std::less<>> tensors_;
};

}  // namespace deltaring
