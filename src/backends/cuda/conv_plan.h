// What a conv is launched as, decided on the host from shapes and the device's limits alone, so that it can be tested
// without a GPU.
#pragma once
#include <algorithm>
#include <cstdint>

#include "backends/cuda/limits.h"

namespace deltaring::cuda {

constexpr int kConvThreads = 128;
constexpr int kConvBlocks = 4;                 // that a multiprocessor has room for
constexpr int kConvTaps = 4, kConvWidth = 8;   // of the wide kernel: taps; neighbouring channels a thread takes
constexpr int kConvLong = 32, kConvShort = 4;  // tokens of a chunk

// What the plan depends on.
struct ConvDesc {
  int64_t B, T;  // rows; tokens of the longest
  int64_t C, taps, Rc;
  bool aligned;  // all rows of all views begin on 16 bytes
};

struct ConvPlan {
  bool wide;         // a thread slides along the tokens of eight channels; else every output of one reads its inputs
  bool early;        // the launch may begin while the kernel before it ends (sm_90)
  int64_t tokens;    // of a chunk, >= taps-1: only the first chunk of a row looks into the ring
  int64_t chunks;    // of a row; the last takes what is left
  int64_t items;     // chunks of all rows
  int64_t channels;  // blocks side by side that hold all channels
  int64_t blocks;    // in all: each takes the items that are blocks / channels apart, and loads its weights once
  friend bool operator==(const ConvPlan&, const ConvPlan&) = default;
};

// C > 0.
constexpr ConvPlan plan_conv(const ConvDesc& d, const DeviceLimits& device) {
  constexpr int64_t kMost = int64_t{1} << 30;  // the wide kernel counts in 32 bits
  const bool pieces = d.aligned && d.C % kConvWidth == 0, narrow = std::max({d.C, d.T, d.Rc}) <= kMost;
  ConvPlan plan{.wide = pieces && narrow && d.taps == kConvTaps, .early = device.capability >= 90};
  const int64_t channels = kConvThreads * (plan.wide ? kConvWidth : 1), rooms = kConvBlocks * device.multiprocessors;
  plan.channels = (d.C + channels - 1) / channels;
  const int64_t at_once = std::max<int64_t>(rooms / plan.channels, 1);  // items
  const auto cut = [&](int64_t tokens) {
    plan.tokens = std::clamp<int64_t>(d.taps - 1, tokens, std::max(tokens, d.T));
    plan.chunks = std::max<int64_t>((d.T + plan.tokens - 1) / plan.tokens, 1);
    plan.items = d.B * plan.chunks;
  };
  cut(kConvLong);
  // A chunk loads taps-1 inputs that another has loaded too: short ones are for the sake of idle multiprocessors.
  for (int64_t tokens = kConvLong / 2; tokens >= kConvShort && 2 * plan.items <= at_once; tokens /= 2) cut(tokens);
  plan.blocks = plan.channels * std::min(plan.items, at_once);
  return plan;
}

}  // namespace deltaring::cuda
