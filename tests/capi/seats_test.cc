// Copies, exports and imports of seats through the C ABI.
#include <gtest/gtest.h>

#include <cstring>

#include "capi/calls.h"

namespace deltaring::capi_testing {
namespace {

constexpr DLDataType kU8{kDLUInt, 8, 1}, kF64{kDLFloat, 64, 1};

std::string last_error() { return deltaring_last_error(); }

class Seats : public testing::TestWithParam<const char*> {
 protected:
  Stream stream_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(, Seats, testing::Values("cpu", "reference"), [](const auto& info) { return info.param; });

Owned counted(std::vector<int64_t> shape, DLDataType type, char first) {
  Owned tensor(std::move(shape), type);
  for (int64_t i = 0; i < tensor.count() * type.bits / 8; i++) tensor.at<char>()[i] = static_cast<char>(first + i);
  return tensor;
}

// Tensors of any rank and dtype; and with strides, when a seat is dense all the same.
TEST_P(Seats, Copy) {
  Owned a = counted({4, 2, 3}, kF64, 0), b = counted({4}, kU8, 50), c = counted({4, 6}, kI32, 9);
  int64_t shape[] = {2, 6}, strides[] = {12, 1};  // every other seat
  DLTensor alternate = *c.get();
  alternate.shape = shape, alternate.strides = strides;
  Owned from({2}, kI32), to({2}, kI32);
  from.set<int32_t>({1, -1}), to.set<int32_t>({0, 1});
  const DLTensor* pair[] = {a.get(), b.get()};
  const deltaring_seat_copy_args args{pair, 2, from.get(), to.get()};
  ASSERT_EQ(deltaring_seat_copy(&args, stream_.handle), DELTARING_OK) << last_error();
  EXPECT_EQ(std::memcmp(a.at<char>(), a.at<char>() + 48, 48), 0);
  EXPECT_EQ(b.at<char>()[0], 51);
  EXPECT_EQ(b.at<char>()[2], 52);
  const DLTensor* one[] = {&alternate};
  const deltaring_seat_copy_args strided{one, 1, from.get(), to.get()};
  ASSERT_EQ(deltaring_seat_copy(&strided, stream_.handle), DELTARING_OK) << last_error();
  EXPECT_EQ(c.at<int32_t>()[0], c.at<int32_t>()[12]);
  EXPECT_NE(c.at<int32_t>()[6], c.at<int32_t>()[12]);
}

TEST_P(Seats, CopyRefuses) {
  Owned a = counted({4, 2, 3}, kF32, 0), from({1}, kI32), to({1}, kI32);
  from.set<int32_t>({2}), to.set<int32_t>({1});
  DLTensor bad = *a.get();
  const DLTensor* tensors[] = {a.get(), &bad};
  const auto refused = [&](const char* why, const deltaring_seat_copy_args& args) {
    EXPECT_EQ(deltaring_seat_copy(&args, stream_.handle), DELTARING_INVALID_ARGUMENT) << why;
    EXPECT_NE(last_error().find(why), std::string::npos) << why << ": " << last_error();
    bad = *a.get();
  };
  refused("2 tensors are null", {nullptr, 2, from.get(), to.get()});
  refused("count is -1", {tensors, -1, from.get(), to.get()});
  refused("from [pairs] is missing", {tensors, 2, nullptr, to.get()});
  refused("2 pairs need from and to", {tensors, 2, Owned({2}, kI32).get(), nullptr});
  refused("from [pairs] is float32, want int32", {tensors, 2, Owned({1}).get(), to.get()});
  int64_t strides[] = {12, 6, 1}, few[] = {3, 2, 3}, negative[] = {4, -2, 3}, huge[] = {4, int64_t{1} << 62, 3};
  bad.strides = strides, strides[1] = 4;
  refused("tensors[1] [seats, ...] is not dense within a seat: stride 4 in dimension 1, want 3",
          {tensors, 2, from.get(), to.get()});
  strides[1] = 3, strides[0] = 5, bad.strides = strides;
  refused("tensor 1 has 20 bytes from seat to seat, want at least the 24", {tensors, 2, from.get(), to.get()});
  bad.shape = few;
  refused("tensor 1 has 3 seats, want 4", {tensors, 2, from.get(), to.get()});
  bad.shape = negative;
  refused("-2 in dimension 1", {tensors, 2, from.get(), to.get()});
  bad.shape = huge;
  refused("reaches beyond all memory", {tensors, 2, from.get(), to.get()});
  bad.ndim = 0;
  refused("0 dimensions, want 1 to 8", {tensors, 2, from.get(), to.get()});
  bad.dtype.bits = 4;
  refused("whole bytes", {tensors, 2, from.get(), to.get()});
  bad.device = {kDLCUDA, 0};
  refused("tensors[1] [seats, ...] is on cuda:0", {tensors, 2, from.get(), to.get()});
  bad.data = nullptr;
  refused("tensor 1 is null", {tensors, 2, from.get(), to.get()});
  tensors[1] = nullptr;
  refused("tensors[1] [seats, ...] is missing", {tensors, 2, from.get(), to.get()});
  EXPECT_EQ(deltaring_seat_copy(nullptr, stream_.handle), DELTARING_INVALID_ARGUMENT);
}

// Two layers with conv rings.
struct Pools {
  World first, second;
  deltaring_gdn_state layers[2];
  const DLTensor* conv[2];

  explicit Pools(unsigned seed) {
    std::mt19937 rng(seed);
    for (World* world : {&first, &second})
      for (const char* name : {"checkpoint", "record_k", "record_v", "record_g", "record_beta", "ring"})
        world->tensors[name].normal(rng);
    layers[0] = first.gdn_state(), layers[1] = second.gdn_state();
    conv[0] = first["ring"], conv[1] = second["ring"];
  }
  deltaring_seat seat(int32_t i) const { return {layers, conv, 2, i, World::taps, 8}; }
};

TEST_P(Seats, ExportAndImport) {
  const Pools from(1), to(2);
  const deltaring_seat seat = from.seat(1), there = to.seat(0);
  int64_t bytes = 0, folded = -1, pos = -1;
  ASSERT_EQ(deltaring_seat_export_bytes(&seat, 8, 13, stream_.handle, &bytes), DELTARING_OK) << last_error();
  Owned file({bytes}, kU8), again({bytes}, kU8);
  ASSERT_EQ(deltaring_seat_export(&seat, 8, 13, file.get(), stream_.handle), DELTARING_OK) << last_error();
  ASSERT_EQ(deltaring_seat_import(&there, 4, file.get(), stream_.handle, &folded, &pos), DELTARING_OK) << last_error();
  EXPECT_EQ(folded, 8);
  EXPECT_EQ(pos, 13);
  ASSERT_EQ(deltaring_seat_export(&there, 8, 13, again.get(), stream_.handle), DELTARING_OK) << last_error();
  EXPECT_EQ(std::memcmp(file.at<char>(), again.at<char>(), static_cast<size_t>(bytes)), 0);

  const auto import = [&](Owned& some) {
    return deltaring_seat_import(&there, 4, some.get(), stream_.handle, &folded, &pos);
  };
  Owned cut({bytes - 1}, kU8);
  std::memcpy(cut.at<char>(), file.at<char>(), static_cast<size_t>(bytes - 1));
  EXPECT_EQ(import(cut), DELTARING_CORRUPT);
  file.at<char>()[bytes / 2] ^= 1;
  EXPECT_EQ(import(file), DELTARING_CORRUPT) << last_error();
  EXPECT_NE(last_error().find("checksum"), std::string::npos) << last_error();
  again.at<char>()[8]++;
  EXPECT_EQ(import(again), DELTARING_UNSUPPORTED) << last_error();
}

TEST_P(Seats, ExportRefuses) {
  const Pools pools(1);
  Owned file({8}, kU8), numbers({8}, kI32);
  int64_t bytes = 0;
  const auto refused = [&](const char* why, deltaring_seat seat, int64_t pos, const DLTensor* to) {
    EXPECT_EQ(deltaring_seat_export(&seat, 8, pos, to, stream_.handle), DELTARING_INVALID_ARGUMENT) << why;
    EXPECT_NE(last_error().find(why), std::string::npos) << why << ": " << last_error();
  };
  const deltaring_seat good = pools.seat(0);
  deltaring_seat bad = good;
  refused("the file has 8 bytes, want", good, 9, file.get());
  refused("file [bytes] is int32, want uint8", good, 9, numbers.get());
  refused("file [bytes] is missing", good, 9, nullptr);
  refused("folded 8 is not in [0, pos = 7]", good, 7, file.get());
  bad.seat = 2;
  refused("seat is 2, want [0, 2)", bad, 9, file.get());
  bad = good, bad.count = 0;
  refused("0 layers, want at least 1", bad, 9, file.get());
  bad = good, bad.layers = nullptr;
  refused("0 layers, want at least 1", bad, 9, file.get());
  bad = good, bad.grain = 3;
  refused("grain is 3, want 8, 16 or 0", bad, 9, file.get());
  bad = good, bad.taps = 0;
  refused("taps is 0", bad, 9, file.get());
  EXPECT_EQ(deltaring_seat_export(nullptr, 8, 9, file.get(), stream_.handle), DELTARING_INVALID_ARGUMENT);
  EXPECT_EQ(deltaring_seat_export(&good, 8, 9, file.get(), nullptr), DELTARING_INVALID_ARGUMENT);
  EXPECT_EQ(deltaring_seat_export_bytes(&good, 8, 9, stream_.handle, nullptr), DELTARING_INVALID_ARGUMENT);
  EXPECT_EQ(deltaring_seat_import(&good, 4, file.get(), stream_.handle, nullptr, &bytes), DELTARING_INVALID_ARGUMENT);
}

// All layers of [layers, seats, ...] pools in one call: as each of them by itself.
TEST_P(Seats, FoldOfManyLayers) {
  constexpr int64_t kLayers = 3, kSeats = World::seats;
  std::mt19937 rng(3);
  World w;
  w.tensors["rows.first"].set<int64_t>({13, 9}), w.tensors["rows.fold_to"].set<int64_t>({8, 0});
  std::map<std::string, Owned> all, each;
  for (const char* name : {"checkpoint", "record_k", "record_v", "record_g", "record_beta"}) {
    const DLTensor& one = *w[name];
    std::vector<int64_t> shape(one.shape, one.shape + one.ndim);
    shape[0] = kLayers * kSeats;
    all[name] = Owned(shape), each[name] = Owned(shape);
    all[name].normal(rng, name == std::string("record_g") ? -0.01f : 0.5f);
    std::memcpy(each[name].at<char>(), all[name].at<char>(), static_cast<size_t>(all[name].count()) * 4);
    w.instead[name] = all[name].get();
  }
  deltaring_gdn_fold_args args{w.rows(), w.gdn_state(), 8, 0, kLayers};
  ASSERT_EQ(deltaring_gdn_fold(&args, stream_.handle), DELTARING_OK) << last_error();
  for (int64_t layer = 0; layer < kLayers; layer++) {
    std::map<std::string, DLTensor> part;
    for (auto& [name, tensor] : each) {
      DLTensor& one = part[name] = *tensor.get();
      one.shape = w.tensors[name].get()->shape;
      one.byte_offset = static_cast<uint64_t>(layer * w.tensors[name].count() * 4);
      w.instead[name] = &one;
    }
    args = {w.rows(), w.gdn_state(), 8, 0, 0};
    ASSERT_EQ(deltaring_gdn_fold(&args, stream_.handle), DELTARING_OK) << last_error();
  }
  for (auto& [name, tensor] : each)
    EXPECT_EQ(std::memcmp(tensor.at<char>(), all[name].at<char>(), static_cast<size_t>(tensor.count()) * 4), 0) << name;
  args = {w.rows(), w.gdn_state(), 8, 0, 3};
  EXPECT_EQ(deltaring_gdn_fold(&args, stream_.handle), DELTARING_INVALID_ARGUMENT);
  EXPECT_NE(last_error().find("layers is 3"), std::string::npos) << last_error();
}

}  // namespace
}  // namespace deltaring::capi_testing
