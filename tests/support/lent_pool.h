// Pools of an engine that holds its own tensors, in the memory of a backend: two layers with conv rings.
#pragma once
#include <random>
#include <vector>

#include "ops/pools.h"
#include "state/pool.h"
#include "state/seat_export.h"

namespace deltaring::test {

struct LentPool {
  static constexpr int64_t kLayers = 2, Hk = 2, Hv = 4, K = 10, V = 6, C = 14, kTaps = 4;
  static constexpr int kParts = 6;

  LentPool(const OpTable& ops, int64_t seats, int64_t R, DType checkpoint = DType::bf16)
      : device(ops), R(R), pools(device, shapes(R, checkpoint), seats) {
    std::mt19937 random(static_cast<unsigned>(seats + R));
    for (int64_t seat = 0; seat < seats; seat++)
      for (int pool = 0; pool < pools.count(); pool++)
        for (std::byte& b : pools.block(pool, seat)) b = static_cast<std::byte>(random());
    pools.begin();
    for (int at = 0; at < kParts * kLayers; at += kParts) {
      layers.push_back({.state = {.checkpoint = pools.view<4>(at, {Hv, V, K}),
                                  .record_k = pools.view<4>(at + 1, {Hk, R, K}),
                                  .record_v = pools.view<4>(at + 2, {Hv, R, V}),
                                  .record_g = pools.view<4>(at + 3, {Hv, R, 1}),
                                  .record_beta = pools.view<3>(at + 4, {Hv, R})},
                        .conv = pools.view<3>(at + 5, {2 * R, C})});
    }
  }

  LentSeat seat(int32_t seat) const { return {.layers = layers, .seat = seat, .taps = kTaps, .grain = 8}; }

  // A StatePool of the same shapes.
  static StateShape shape() {
    return {.gdn_layers = kLayers, .Hk = Hk, .Hv = Hv, .K = K, .V = V, .conv_channels = C, .taps = kTaps};
  }
  static StateOptions options(int64_t R) {
    return {.seats = 3,
            .kv_tokens = 200,
            .ring = {.T = 4, .F = 8, .R = R},
            .checkpoint = DType::bf16,
            .record = DType::f16,
            .kv = DType::f16};
  }

  replay::Device device;
  int64_t R;
  replay::Pools pools;
  std::vector<SeatLayer> layers;

 private:
  static std::vector<replay::PoolShape> shapes(int64_t R, DType checkpoint) {
    std::vector<replay::PoolShape> all;
    for (int64_t layer = 0; layer < kLayers; layer++) {
      const replay::PoolShape parts[kParts] = {
          {"checkpoint", checkpoint, Hv, V, K},  {"record_k", DType::f16, Hk, R, K},
          {"record_v", DType::f16, Hv, R, V},    {"record_g", DType::f32, Hv, R, 1},
          {"record_beta", DType::f32, Hv, R, 1}, {"conv ring", DType::f32, 1, 2 * R, C}};
      all.insert(all.end(), parts, parts + kParts);
    }
    return all;
  }
};

}  // namespace deltaring::test
