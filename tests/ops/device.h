// The machine behind a backend as the tests see it: memory with two addresses, and when a launch has ended. Backends
// that do not compute on the host are told apart here and nowhere else in the tests.
#pragma once
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <vector>

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

// Pieces of a device's memory, kept for the next of the same size: to ask for one takes longer than the calls under
// test.
class DevicePieces {
 public:
  explicit DevicePieces(const Memory& memory) : memory_(memory) {}
  ~DevicePieces() {
    for (const auto& [bytes, pieces] : free_)
      for (std::byte* piece : pieces) memory_.free(piece);
  }
  DevicePieces(const DevicePieces&) = delete;
  DevicePieces& operator=(const DevicePieces&) = delete;

  const Memory& memory() const { return memory_; }
  std::byte* take(size_t bytes) {
    std::vector<std::byte*>& pieces = free_[bytes];
    if (pieces.empty()) return static_cast<std::byte*>(memory_.allocate(bytes));
    std::byte* piece = pieces.back();
    pieces.pop_back();
    return piece;
  }
  void give(size_t bytes, std::byte* piece) { free_[bytes].push_back(piece); }

 private:
  const Memory& memory_;
  std::map<size_t, std::vector<std::byte*>> free_;
};

// Memory of a device with a mirror in the host's.
class DeviceBlock final : public Block {
 public:
  DeviceBlock(std::shared_ptr<DevicePieces> pieces, size_t bytes)
      : pieces_(std::move(pieces)), host_(bytes), device_(pieces_->take(bytes)), bytes_(bytes) {}
  ~DeviceBlock() override { pieces_->give(bytes_, device_); }
  std::byte* host() const override { return host_.host(); }
  std::byte* device() const override { return device_; }
  void push() const override { pieces_->memory().write(device_, host(), bytes_); }
  void pull() const override { pieces_->memory().read(host(), device_, bytes_); }

 private:
  std::shared_ptr<DevicePieces> pieces_;
  HostBlock host_;
  std::byte* device_;
  size_t bytes_;
};

class Device {
 public:
  explicit Device(const OpTable& table)
      : memory_(table.memory), pieces_(memory_ ? std::make_shared<DevicePieces>(*memory_) : nullptr) {}

  // Bytes between token rows: none of the host's kernels may need them aligned, those of a device may.
  int64_t gap() const { return memory_ ? 16 : 20; }
  std::unique_ptr<Block> allocate(size_t bytes) const {
    if (memory_) return std::make_unique<DeviceBlock>(pieces_, bytes);
    return std::make_unique<HostBlock>(bytes);
  }
  // Returns when everything that was launched on the stream has run.
  void wait(Stream& stream) const {
    if (memory_) memory_->wait(stream);
  }

 private:
  const Memory* memory_;
  std::shared_ptr<DevicePieces> pieces_;
};

// What lies in the host's memory, where the backend computes: copied there, and back again when it is done.
class Visit {
 public:
  explicit Visit(const Device& device) : device_(device) {}

  // All that the view spans, gaps included; strides >= 0.
  template <int N>
  View<N> operator()(View<N> view) {
    if (!view) return view;
    int64_t elements = 1;
    for (int d = 0; d < N; d++) elements += (view.shape[d] - 1) * view.stride[d];
    view.data = bring(view.data, elements * size_of(view.dtype));
    return view;
  }
  template <class T>
  const T* operator()(const std::vector<T>& array) {
    return static_cast<const T*>(bring(const_cast<T*>(array.data()), array.size() * sizeof(T)));
  }
  void back() const {
    for (const Guest& guest : guests_) {
      guest.block->pull();
      std::memcpy(guest.home, guest.block->host(), guest.bytes);
    }
  }

 private:
  struct Guest {
    void* home;
    size_t bytes;
    std::unique_ptr<Block> block;
  };
  void* bring(void* home, size_t bytes) {
    const Guest& guest = guests_.emplace_back(Guest{home, bytes, device_.allocate(bytes)});
    std::memcpy(guest.block->host(), home, bytes);
    guest.block->push();
    return guest.block->device();
  }

  const Device& device_;
  std::vector<Guest> guests_;
};

// Of the given tables those that compute in the host's memory, for tests whose tensors lie there.
inline std::vector<const OpTable*> on_host(std::vector<const OpTable*> tables) {
  std::erase_if(tables, [](const OpTable* table) { return table->memory != nullptr; });
  return tables;
}

// And those that do not.
inline std::vector<const OpTable*> on_device(std::vector<const OpTable*> tables) {
  std::erase_if(tables, [](const OpTable* table) { return table->memory == nullptr; });
  return tables;
}

}  // namespace deltaring::replay
