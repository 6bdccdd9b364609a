// The cases of op_test where the kernel before writes the row arrays while the op's own blocks are already there, and
// where shared memory holds NaN: no result may depend on what is found too early or not written.
#include "cuda/adversity.h"

#include <gtest/gtest.h>

#include <random>

#include "backends/cuda/stream.h"
#include "backends/tables.h"
#include "op_test/modes.h"

namespace deltaring::op_test {
namespace {

// What is in the row arrays before they are written.
enum class Stale { rotated, seats, no_rows, noise };
constexpr const char* kNames[] = {"RowsOfOthers", "SeatsOfOthers", "NoRows", "Noise"};

constexpr const char* kOps[] = {"conv", "gdn_verify", "gdn_prefill", "gdn_fold", "snapshot_verify", "snapshot_commit"};

const OpTable* base = nullptr;
Stale stale = Stale::rotated;

class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) : bytes_(static_cast<std::byte*>(base->memory->allocate(bytes))) {}
  ~DeviceBytes() { base->memory->free(bytes_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  std::byte* data() const { return bytes_; }

 private:
  std::byte* bytes_;
};

// The arrays of rows that are there, stale now, and what they shall hold.
class LateRows {
 public:
  explicit LateRows(const Rows& rows) {
    add(rows.start, rows.count + 1), add(rows.seat, rows.count, true), add(rows.first, rows.count);
    add(rows.folded, rows.count), add(rows.fold_to, rows.count), add(rows.order, rows.count);
  }
  void write(cudaStream_t stream) const { cuda::write_late({late_, count_}, stream); }

 private:
  template <class T>
  void add(const T* array, int32_t count, bool seats = false) {
    if (array == nullptr || count == 0) return;
    const size_t bytes = sizeof(T) * static_cast<size_t>(count);
    auto* to = reinterpret_cast<std::byte*>(const_cast<T*>(array));
    std::vector<std::byte> now(bytes);
    base->memory->read(now.data(), to, bytes);
    base->memory->write(copies_.emplace_back(std::make_unique<DeviceBytes>(bytes))->data(), now.data(), bytes);
    late_[count_++] = {to, copies_.back()->data(), bytes};
    if (stale == Stale::rotated || (stale == Stale::seats && seats)) std::ranges::rotate(now, now.begin() + sizeof(T));
    if (stale == Stale::no_rows) std::ranges::fill(now, std::byte{0xFF});
    if (stale == Stale::noise) std::ranges::generate(now, [this] { return static_cast<std::byte>(random_()); });
    base->memory->write(to, now.data(), bytes);
  }

  std::vector<std::unique_ptr<DeviceBytes>> copies_;
  cuda::LateBytes late_[cuda::kMostLate];
  size_t count_ = 0;
  std::minstd_rand random_{1};
};

template <auto op, class Args>
void beset(const Args& a, Stream& stream) {
  const LateRows rows(a.rows);
  cudaStream_t native = cuda::cuda_stream(stream).get();
  cuda::poison_shared_memory(native);
  rows.write(native);
  (base->*op)(a, stream);
  base->memory->wait(stream);
}

class Adversity : public testing::TestWithParam<std::tuple<const OpTable*, Stale>> {};

TEST_P(Adversity, ChangesNothing) {
  std::tie(base, stale) = GetParam();
  OpTable table = *base;
  table.conv = beset<&OpTable::conv>;
  table.gdn_verify = beset<&OpTable::gdn_verify>;
  table.gdn_prefill = beset<&OpTable::gdn_prefill>;
  table.gdn_fold = beset<&OpTable::gdn_fold>;
  table.snapshot_verify = beset<&OpTable::snapshot_verify>;
  table.snapshot_commit = beset<&OpTable::snapshot_commit>;
  int besets = 0;
  for (const Case& c : all_cases()) {
    if (std::ranges::none_of(kOps, [&](const char* op) { return c.is(op); })) continue;
    const Outcome outcome = test(c, table, {});
    EXPECT_NE(outcome.status, Status::failed) << c.name() << ": " << outcome.text;
    besets += outcome.status == Status::ok;
  }
  EXPECT_GT(besets, 50);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Adversity);
INSTANTIATE_TEST_SUITE_P(, Adversity,
                         testing::Combine(testing::ValuesIn(replay::on_device(backends())),
                                          testing::Values(Stale::rotated, Stale::seats, Stale::no_rows, Stale::noise)),
                         [](const auto& info) {
                           return std::get<0>(info.param)->name +
                                  std::string(kNames[static_cast<int>(std::get<1>(info.param))]);
                         });

}  // namespace
}  // namespace deltaring::op_test
