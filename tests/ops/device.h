// The machine behind a backend as the tests see it: memory with two addresses, and when a launch has ended.
#pragma once
#include <cstddef>
#include <memory>
#include <new>

#include "ops/table.h"

namespace deltaring::replay {

// Bytes that the test reads and writes at host() and the backend at device(). In host memory both are one.
class Block {
 public:
  virtual ~Block() = default;
  virtual std::byte* host() const = 0;
  virtual std::byte* device() const = 0;
  virtual void push() const = 0;  // host to device
  virtual void pull() const = 0;  // device to host, behind everything that was launched
};

class HostBlock final : public Block {
 public:
  explicit HostBlock(size_t bytes) : bytes_(static_cast<std::byte*>(::operator new(bytes, kAlign))) {}
  ~HostBlock() override { ::operator delete(bytes_, kAlign); }
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;
  std::byte* host() const override { return bytes_; }
  std::byte* device() const override { return bytes_; }
  void push() const override {}
  void pull() const override {}

 private:
  static constexpr std::align_val_t kAlign{64};
  std::byte* bytes_;
};

struct Device {
  std::unique_ptr<Block> (*allocate)(size_t bytes);
  void (*wait)(Stream&);  // returns when everything that was launched on the stream has run
  int64_t gap;            // floats between token rows: none of the host's kernels may need them aligned
};

// Backends that compute on the host need nothing; one that does not is told apart here and nowhere else in the tests.
inline const Device& device_of(const OpTable&) {
  static constexpr Device host{
      .allocate = [](size_t bytes) -> std::unique_ptr<Block> { return std::make_unique<HostBlock>(bytes); },
      .wait = [](Stream&) {},
      .gap = 5,
  };
  return host;
}

}  // namespace deltaring::replay
