// Seats as bytes: any tensors, any pairs, and what is refused, on every backend.
#include "ops/seats.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "backends/tables.h"
#include "ops/fenced.h"
#include "ops/refused.h"
#include "ops/tensor.h"

namespace deltaring {
namespace {

using replay::Buffer, replay::Device;
using testing::Tensor;

class Seats : public ::testing::TestWithParam<const OpTable*> {
 protected:
  const OpTable& ops() const { return *GetParam(); }
  Device device_{*GetParam()};
  std::unique_ptr<Stream> stream_ = GetParam()->make_stream(1);
};
INSTANTIATE_TEST_SUITE_P(, Seats, ::testing::ValuesIn(backends()), [](const auto& info) { return info.param->name; });

Buffer numbers(const Device& device, const std::vector<int32_t>& values) {
  Buffer buffer(device, values.size() * sizeof(int32_t));
  if (!values.empty()) std::memcpy(buffer.data(), values.data(), buffer.bytes().size());
  buffer.push();
  return buffer;
}
const int32_t* int32s(const Buffer& buffer) { return reinterpret_cast<const int32_t*>(buffer.device()); }

// Tensors of any size and alignment in one piece of memory, between them bytes that nobody may touch.
struct Pool {
  std::vector<SeatTensor> tensors;
  std::unique_ptr<Buffer> memory;
  std::vector<std::byte> expected;

  Pool(const Device& device, std::mt19937& random, size_t count, int64_t seats, int64_t most_bytes) {
    std::vector<size_t> at;
    size_t size = 0;
    for (size_t i = 0; i < count; i++) {
      const int64_t step = int64_t{1} << random() % 5;  // alignment of the seats, 1 to 16
      const int64_t bytes = static_cast<int64_t>(random() % (most_bytes / step + 1)) * step;
      const int64_t pitch = bytes + static_cast<int64_t>(random() % 3) * step;
      size = (size + 31) / 16 * 16 + random() % 2 * step;
      at.push_back(size);
      size += seats * pitch;
      tensors.push_back({.seats = seats, .pitch = pitch, .bytes = bytes});
    }
    memory = std::make_unique<Buffer>(device, size + 16);
    for (std::byte& b : memory->bytes()) b = static_cast<std::byte>(random());
    for (size_t i = 0; i < count; i++) tensors[i].data = memory->device() + at[i];
    expected = memory->copy();
    memory->push();
  }

  void copy(int32_t from, int32_t to) {
    if (from < 0 || to < 0) return;
    const std::vector<std::byte> before = expected;
    for (const SeatTensor& t : tensors)
      std::copy_n(before.begin() + (t.seat(from) - memory->device()), t.bytes,
                  expected.begin() + (t.seat(to) - memory->device()));
  }
};

TEST_P(Seats, CopyIsThatOfItsBytes) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; round++) {
    const int64_t seats = 1 + random() % 9;
    Pool pool(device_, random, random() % 7, seats, round % 4 == 0 ? 40000 : 90);
    std::vector<int32_t> order(seats), from, to;
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    // The first half is copied into the second, some of it twice.
    for (int64_t i = seats / 2; i < seats; i++) {
      from.push_back(seats > 1 ? order[random() % (seats / 2)] : -1), to.push_back(order[i]);
      if (random() % 5 == 0) from.back() = -1;
      if (random() % 5 == 0) to.back() = -1;
      if (random() % 9 == 0) from.back() = to.back();
    }
    for (size_t i = 0; i < from.size(); i++) pool.copy(from[i], to[i]);
    const Buffer froms = numbers(device_, from), tos = numbers(device_, to);
    ops().seat_copy(
        {.tensors = pool.tensors, .count = static_cast<int32_t>(from.size()), .from = int32s(froms), .to = int32s(tos)},
        *stream_);
    device_.wait(*stream_);
    pool.memory->pull();
    ASSERT_EQ(pool.memory->copy(), pool.expected) << round;
    ASSERT_TRUE(pool.memory->fences_intact());
  }
}

// More tensors than a launch on a device takes, a seat of no bytes among them; strides that descend.
TEST_P(Seats, CopyOfManyTensors) {
  std::mt19937 random(5);
  Pool pool(device_, random, 2100, 3, 24);
  SeatTensor& last = pool.tensors.back();
  last.data = last.seat(2), last.pitch = -last.pitch;
  pool.copy(2, 0);
  const Buffer from = numbers(device_, {2}), to = numbers(device_, {0});
  ops().seat_copy({.tensors = pool.tensors, .count = 1, .from = int32s(from), .to = int32s(to)}, *stream_);
  device_.wait(*stream_);
  pool.memory->pull();
  EXPECT_EQ(pool.memory->copy(), pool.expected);
}

TEST_P(Seats, CopyRefuses) {
  std::mt19937 random(2);
  Pool pool(device_, random, 3, 4, 16);
  pool.tensors[1].bytes = pool.tensors[1].pitch = 4;
  const Buffer from = numbers(device_, {0, -1}), to = numbers(device_, {2, 3});
  static std::vector<SeatTensor> bad;
  const SeatCopyArgs good{.tensors = pool.tensors, .count = 2, .from = int32s(from), .to = int32s(to)};
  const auto with = [&](auto change) {
    return [&pool, change](SeatCopyArgs& a) { bad = pool.tensors, change(bad[1]), a.tensors = bad; };
  };
  testing::expect_refused<SeatCopyArgs>(
      good,
      {{[](auto& a) { a.count = -1; }, "seat_copy: count is -1"},
       {[](auto& a) { a.from = nullptr; }, "seat_copy: 2 pairs need from and to"},
       {[](auto& a) { a.to = nullptr; }, "2 pairs need from and to"},
       {with([](SeatTensor& t) { t.seats = 3; }), "tensor 1 has 3 seats, want 4"},
       {with([](SeatTensor& t) { t.pitch = 3; }), "tensor 1 has 3 bytes from seat to seat, want at least the 4"},
       {with([](SeatTensor& t) { t.bytes = -1; }), "tensor 1 has 4 bytes from seat to seat"},
       {with([](SeatTensor& t) { t.data = nullptr; }), "tensor 1 is null"}},
      [this](const SeatCopyArgs& args) { ops().seat_copy(args, *stream_); });
  EXPECT_NO_THROW(ops().seat_copy({}, *stream_));
}

// Pairs that cannot be: refused where the host sees them, left out elsewhere.
TEST_P(Seats, CopyOfSeatsThatAreNot) {
  std::mt19937 random(3);
  for (const auto& [from, to, message] :
       {std::tuple{0, 4, "to[0] is 4, want -1 or [0, 4)"}, std::tuple{4, 0, "from[0] is 4, want -1 or [0, 4)"},
        std::tuple{-2, 0, "from[0] is -2"}}) {
    Pool pool(device_, random, 2, 4, 16);
    const Buffer froms = numbers(device_, {from}), tos = numbers(device_, {to});
    const SeatCopyArgs args{.tensors = pool.tensors, .count = 1, .from = int32s(froms), .to = int32s(tos)};
    try {
      ops().seat_copy(args, *stream_);
      device_.wait(*stream_);
      EXPECT_TRUE(ops().memory) << message;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(message));
      EXPECT_FALSE(ops().memory);
    }
    pool.memory->pull();
    EXPECT_EQ(pool.memory->copy(), pool.expected);
  }
}

TEST(SeatCopy, PairsThatDependOnEachOther) {
  std::byte memory[4]{};
  const std::vector<SeatTensor> tensors{{.data = memory, .seats = 4, .pitch = 1, .bytes = 1}};
  const auto pairs = [&](std::vector<int32_t> from, std::vector<int32_t> to) {
    check({.tensors = tensors, .count = static_cast<int32_t>(from.size()), .from = from.data(), .to = to.data()});
  };
  EXPECT_NO_THROW(pairs({0, 0, 3, -1, 1}, {1, 2, 3, 1, -1}));
  for (const auto& [from, to] : {std::pair<std::vector<int32_t>, std::vector<int32_t>>{{0, 1}, {2, 2}},
                                 {{0, 1}, {1, 2}},
                                 {{0, 1}, {1, 0}},
                                 {{0, 3, 3}, {1, 3, 2}}})
    EXPECT_THROW(pairs(from, to), Error);
}

constexpr int64_t kSeats = 3, Hk = 2, Hv = 4, K = 8, V = 6, R = 16, C = 5, Rc = 32;

// More layers than one launch on a device takes.
TEST_P(Seats, PackOfManyLayers) {
  constexpr int64_t kLayers = 70, kFloats = Hv * V * K, kGates = Hv * R, kKeys = Hk * R * K, kValues = Hv * R * V;
  constexpr int64_t kPart[] = {kFloats, kKeys, kValues, kGates, kGates},
                    kLayer = kFloats + kKeys + kValues + 2 * kGates;
  const Buffer pools(device_, kLayers * kLayer * sizeof(float));
  for (int64_t i = 0; i < kLayers * kLayer; i++) reinterpret_cast<int32_t*>(pools.data())[i] = static_cast<int32_t>(i);
  pools.push();
  std::vector<SeatLayer> layers;
  for (int64_t l = 0; l < kLayers; l++) {
    float* at = reinterpret_cast<float*>(pools.device()) + l * kLayer;
    const auto take = [&](auto shape, int part) {
      auto view = dense<shape.size()>(at, DType::f32, shape);
      at += kPart[part];
      return view;
    };
    GdnState& s = layers.emplace_back().state;
    s.checkpoint = take(std::array{int64_t{1}, Hv, V, K}, 0);
    s.record_k = take(std::array{int64_t{1}, Hk, R, K}, 1), s.record_v = take(std::array{int64_t{1}, Hv, R, V}, 2);
    s.record_g = take(std::array{int64_t{1}, Hv, R, int64_t{1}}, 3);
    s.record_beta = take(std::array{int64_t{1}, Hv, R}, 4);
  }
  const Cursor cursor{.folded = 24, .pos = 40};  // a whole ring
  const int64_t size = kLayers * live_seat(layers[0], cursor, 1).bytes();
  ASSERT_EQ(size, kLayers * kLayer * 4);
  const Buffer packed(device_, size);
  packed.push();
  const SeatPackArgs args{.layers = layers, .cursor = cursor, .bytes = packed.device(), .size = size};
  ops().seat_pack(args, *stream_);
  device_.wait(*stream_);
  packed.pull();
  EXPECT_TRUE(packed.fences_intact());
  const std::vector<std::byte> before = pools.copy();
  for (int64_t l = 0; l < kLayers; l++) {
    const auto* got = reinterpret_cast<const int32_t*>(packed.data()) + l * kLayer;
    EXPECT_EQ(got[0], l * kLayer) << "the checkpoint comes first";
    EXPECT_EQ(got[kFloats], l * kLayer + kFloats + 8 * K) << "then k of position 24, in slot 8";
  }
  std::memset(pools.data(), 0, pools.bytes().size());
  pools.push();
  ops().seat_unpack(args, *stream_);
  device_.wait(*stream_);
  pools.pull();
  EXPECT_EQ(pools.copy(), before);
}

TEST_P(Seats, PackRefuses) {
  const Tensor<4> checkpoint(DType::bf16, {kSeats, Hv, V, K}), record_k(DType::f16, {kSeats, Hk, R, K});
  const Tensor<4> record_v(DType::f16, {kSeats, Hv, R, V}), record_g(DType::f32, {kSeats, Hv, R, 1});
  const Tensor<3> record_beta(DType::f32, {kSeats, Hv, R}), conv(DType::bf16, {kSeats, Rc, C});
  const SeatLayer layer{.state = {.checkpoint = checkpoint.view(),
                                  .record_k = record_k.view(),
                                  .record_v = record_v.view(),
                                  .record_g = record_g.view(),
                                  .record_beta = record_beta.view()},
                        .conv = conv.view()};
  const std::vector<SeatLayer> layers{layer, layer};
  const Cursor cursor{.folded = 8, .pos = 8};
  const int64_t size = 2 * live_seat(layer, cursor, 4).bytes();
  EXPECT_EQ(size, 2 * (Hv * V * K * 2 + 3 * C * 2));
  std::vector<std::byte> bytes(size);
  const SeatPackArgs good{
      .layers = layers, .seat = 2, .cursor = cursor, .taps = 4, .bytes = bytes.data(), .size = size};
  static std::vector<SeatLayer> bad;
  const auto with = [&](auto change) {
    return [&layers, change](SeatPackArgs& a) { bad = layers, change(bad[1]), a.layers = bad; };
  };
  const std::vector<testing::Fault<SeatPackArgs>> faults{
      {[](auto& a) { a.seat = 3; }, "seat is 3, want [0, 3)"},
      {[](auto& a) { a.seat = -1; }, "seat is -1, want [0, 3)"},
      {[](auto& a) { a.cursor.pos = 7; }, "folded 8 is not in [0, pos = 7]"},
      {[](auto& a) { a.cursor.pos = 25; }, "17 records in a ring of 16"},
      {[](auto& a) { a.cursor.folded = -8; }, "folded -8 is not in"},
      {[](auto& a) { a.taps = 0; }, "taps is 0, want [1, 1024]"},
      {[](auto& a) {
         a.taps = 40, a.cursor = {80, 80};
       },
       "39 conv inputs behind 41 in a ring of 32"},
      {[](auto& a) { a.size--; }, "want 828"},
      {[](auto& a) { a.bytes = nullptr; }, "bytes is null"},
      {with([](SeatLayer& l) { l.state.checkpoint.data = nullptr; }), "checkpoint [seats, Hv, V, K] is null"},
      {with([](SeatLayer& l) { l.state.checkpoint.dtype = DType::f16; }), "of layer 1 has another shape or dtype"},
      {with([](SeatLayer& l) { l.state.record_v.dtype = DType::f32; }), "record_v [seats, Hv, R, V] is float32"},
      {with([](SeatLayer& l) {
         l.state.checkpoint.stride = {2 * Hv * V * K, 2 * V * K, 2 * K, 1};
       }),
       "has stride 16 in V, want 8: a seat is one run of bytes"},
      {with([](SeatLayer& l) { l.conv = {}; }), "conv is given for some layers only"},
  };
  for (const bool unpack : {false, true}) {
    const auto op = unpack ? ops().seat_unpack : ops().seat_pack;
    // A device cannot read the host's memory, but what is refused is refused before it would.
    const auto call = [&](const SeatPackArgs& args) {
      if (!ops().memory || &args.layers[0] == bad.data() || args.size != good.size || args.seat != good.seat ||
          args.cursor != good.cursor || args.taps != good.taps || !args.bytes)
        op(args, *stream_);
    };
    bad.clear();
    testing::expect_refused<SeatPackArgs>(good, faults, call);
  }
  EXPECT_NO_THROW(ops().seat_pack({.layers = {}, .bytes = nullptr}, *stream_));
}

}  // namespace
}  // namespace deltaring
