// A file mapped read-only into memory.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

namespace deltaring {

class MappedFile {
 public:
  // Throws Error(not_found) when the file cannot be opened, naming it and the reason. An empty file maps to an empty
  // span.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace deltaring
