// The memory of a device through the functions of its table.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "backends/tables.h"
#include "base/error.h"
#include "ops/device.h"

namespace deltaring {
namespace {

class DeviceMemory : public ::testing::TestWithParam<const OpTable*> {
 protected:
  const Memory& memory() const { return *GetParam()->memory; }
  std::unique_ptr<Stream> stream_ = GetParam()->make_stream(1);
};

TEST_P(DeviceMemory, BytesComeBackAsTheyWent) {
  std::vector<std::byte> bytes(1 << 20), back(bytes.size());
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  void* there = memory().allocate(bytes.size());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(there) % 256, 0u);
  memory().write(there, bytes.data(), bytes.size());
  memory().read(back.data(), there, back.size());
  EXPECT_EQ(back, bytes);
  memory().free(there);
}

// A seat of 100 bytes in three layers of four seats: what copy is for.
TEST_P(DeviceMemory, CopiesASeatInAllLayers) {
  constexpr size_t kSeat = 100, kPitch = 4 * kSeat, kLayers = 3;
  std::vector<std::byte> pool(kPitch * kLayers), want, got(pool.size());
  for (size_t i = 0; i < pool.size(); i++) pool[i] = static_cast<std::byte>(i * 13);
  want = pool;
  for (size_t layer = 0; layer < kLayers; layer++)
    std::memcpy(&want[layer * kPitch + 3 * kSeat], &pool[layer * kPitch + kSeat], kSeat);
  auto* there = static_cast<std::byte*>(memory().allocate(pool.size()));
  memory().write(there, pool.data(), pool.size());
  memory().copy(there + 3 * kSeat, there + kSeat, kSeat, kPitch, kLayers, *stream_);
  memory().copy(there, there + kSeat, 0, kPitch, kLayers, *stream_);
  memory().copy(there, there + kSeat, kSeat, kPitch, 0, *stream_);
  memory().wait(*stream_);
  memory().read(got.data(), there, got.size());
  EXPECT_EQ(got, want);
  memory().free(there);
}

TEST_P(DeviceMemory, MoreThanThereIs) {
  try {
    memory().allocate(size_t{1} << 50);
    ADD_FAILURE() << "a petabyte was allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("cudaMalloc of 1125899906842624 bytes"), std::string::npos);
  }
  EXPECT_NO_THROW(memory().free(memory().allocate(16)));  // nothing is left behind
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceMemory);
INSTANTIATE_TEST_SUITE_P(, DeviceMemory, ::testing::ValuesIn(replay::on_device(backends())),
                         [](const auto& info) { return info.param->name; });

// A machine without a GPU says what it lacks, one with a GPU offers the backend.
TEST(CudaBackend, IsThereOrSaysWhyNot) {
  const bool offered = !replay::on_device(backends()).empty();
  try {
    EXPECT_STREQ(backend("cuda").name, "cuda");
    EXPECT_TRUE(offered);
  } catch (const Error& error) {
    EXPECT_FALSE(offered);
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(error.what()).find("cpu works"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace deltaring
