// A fold of all layers in one call: bit for bit the folds of each.
#include <gtest/gtest.h>

#include "backends/tables.h"
#include "ops/pools.h"
#include "ops/refused.h"

namespace deltaring::replay {
namespace {

struct Dims {
  int64_t Hk, Hv, K, V, G;
  DType checkpoint, record;
};

constexpr int64_t kLayers = 3, kSeats = 4, R = 32, kRows = 3;

float number(uint64_t seed) {
  seed = seed * 6364136223846793005 + 1442695040888963407;
  return static_cast<float>(static_cast<int32_t>(seed >> 32)) * 0x1p-31f;
}

// Pools [layers x seats, ...] and rows of different length, one without a seat and one without a fold.
struct World {
  World(const OpTable& table, const Dims& d)
      : device(table),
        memory(device,
               {{"checkpoint", d.checkpoint, d.Hv, d.V, d.K},
                {"record_k", d.record, d.Hk, R, d.K},
                {"record_v", d.record, d.Hv, R, d.V},
                {"record_g", DType::f32, d.Hv, R, d.G},
                {"record_beta", DType::f32, d.Hv, R, 1}},
               kLayers * kSeats),
        rows(device, kRows) {
    for (int64_t place = 0; place < kLayers * kSeats; place++) {
      for (int pool = 0; pool < memory.count(); pool++) {
        const auto block = memory.block(pool, place);
        const DType t = memory.shape(pool).dtype;
        for (size_t i = 0; i < block.size() / size_of(t); i++) {
          const float x = number(1000003 * place + 7919 * pool + i);
          store_from_float(block.data(), t, static_cast<int64_t>(i),
                           pool < 3    ? x
                           : pool == 3 ? 0.1f * (x - 1)
                                       : 0.5f * x);
        }
      }
    }
    state = {.checkpoint = memory.view<4>(0, {d.Hv, d.V, d.K}),
             .record_k = memory.view<4>(1, {d.Hk, R, d.K}),
             .record_v = memory.view<4>(2, {d.Hv, R, d.V}),
             .record_g = memory.view<4>(3, {d.Hv, R, d.G}),
             .record_beta = memory.view<3>(4, {d.Hv, R})};
    rows.add(2, {.folded = 24, .pos = 43}, 40, 0, 0);
    rows.add(-1, {}, 0, 0, 0);
    rows.add(0, {.folded = 8, .pos = 15}, 8, 0, 0);
    memory.begin(), rows.push();
  }
  Rows folds() const {
    Rows folds = rows.device();
    folds.start = nullptr;
    return folds;
  }

  Device device;
  Pools memory;
  RowArrays rows;
  GdnState state;
};

class FoldsAllLayers : public ::testing::TestWithParam<const OpTable*> {};
INSTANTIATE_TEST_SUITE_P(, FoldsAllLayers, ::testing::ValuesIn(backends()),
                         [](const auto& info) { return info.param->name; });

TEST_P(FoldsAllLayers, AsOneByOne) {
  const OpTable& table = *GetParam();
  const auto stream = table.make_stream(2);
  for (const Dims& dims :
       {Dims{2, 6, 35, 13, 1, DType::f16, DType::f16}, Dims{1, 2, 16, 40, 16, DType::f32, DType::bf16},
        Dims{1, 3, 128, 128, 1, DType::bf16, DType::bf16}}) {
    World together(table, dims), apart(table, dims);
    table.gdn_fold({.rows = together.folds(), .state = together.state, .grain = 8, .layers = kLayers}, *stream);
    for (int64_t l = 0; l < kLayers; l++)
      table.gdn_fold({.rows = apart.folds(), .state = layer_of(apart.state, kLayers, l), .grain = 8}, *stream);
    together.device.wait(*stream);
    together.memory.pull(), apart.memory.pull();
    EXPECT_EQ(together.memory.copy(), apart.memory.copy()) << dims.K;
    for (int64_t l = 0; l < kLayers; l++) together.memory.allow(together.memory.block(0, l * kSeats + 2));
    EXPECT_EQ(together.memory.end(), "");
    EXPECT_NE(apart.memory.end(), "") << "nothing was folded";
  }
}

TEST_P(FoldsAllLayers, Refuses) {
  const OpTable& table = *GetParam();
  const auto stream = table.make_stream(1);
  const World world(table, {1, 1, 4, 4, 1, DType::f32, DType::f32});
  const GdnFoldArgs good{.rows = world.folds(), .state = world.state, .grain = 8, .layers = kLayers};
  testing::expect_refused<GdnFoldArgs>(
      good,
      {{[](auto& a) { a.layers = 0; }, "gdn_fold: layers is 0, want at least 1 and a divisor of the 12 places"},
       {[](auto& a) { a.layers = -3; }, "layers is -3"},
       {[](auto& a) { a.layers = 5; }, "layers is 5"}},
      [&](const GdnFoldArgs& args) { table.gdn_fold(args, *stream); });
  GdnFoldArgs too_many = good;
  too_many.layers = 6;  // then seat 2 is none of a layer's two
  if (!table.memory) {
    EXPECT_THROW(table.gdn_fold(too_many, *stream), Error);
  }
}

}  // namespace
}  // namespace deltaring::replay
