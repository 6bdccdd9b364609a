#include <algorithm>
#include <vector>

#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/conv.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// after highway.h
#include "backends/cpu/math-inl.h"
#include "backends/cpu/partial-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {

// out[c] = silu(sum_j w[j][c] x[j][c]) for `count` channels; x[j] null where the sequence has not begun. Taps ascend,
// so a channel's bits depend on its taps alone.
void ConvToken(const float* const* w, const float* const* x, int64_t taps, int64_t count, float* out) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto vector = [&](int64_t c, int64_t left) HWY_ATTR {  // channels [c, c + min(left, lanes))
    auto sum = hn::Zero(d);
    for (int64_t j = 0; j < taps; j++) {
      if (x[j]) sum = hn::MulAdd(LoadUpTo(d, w[j] + c, left), LoadUpTo(d, x[j] + c, left), sum);
    }
    StoreUpTo(d, Silu(d, sum), out + c, left);
  };
  int64_t c = 0;
  for (; c + lanes <= count; c += lanes) vector(c, lanes);
  if (c < count) vector(c, count - c);
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaring::cpu {
HWY_EXPORT(ConvToken);

namespace {

constexpr int64_t kChannels = 512;  // per task: taps and tokens of a task stay in the first-level cache

// Channels [c0, c0 + count) of row b: outputs first, then the ring, since outputs read what the ring still holds.
void conv_channels(const ConvArgs& a, int32_t b, int64_t c0, int64_t count) {
  const int64_t taps = a.weight.shape[1], Rc = a.ring.shape[1], length = a.rows.length(b);
  const int32_t seat = a.rows.seat[b];
  if (seat < 0) {
    for (int64_t i = 0; i < length; i++) std::fill_n(a.out.f32(a.rows.start[b] + i, c0), count, 0.0f);
    return;
  }
  std::vector<float> transposed;  // [taps, count] unless the weight is stored tap-major already
  std::vector<const float*> w(taps), x(taps);
  if (a.weight.stride[0] != 1) transposed.resize(taps * count);
  for (int64_t j = 0; j < taps; j++) {
    w[j] = a.weight.f32(c0, j);
    if (transposed.empty()) continue;
    for (int64_t c = 0; c < count; c++) transposed[j * count + c] = *a.weight.f32(c0 + c, j);
    w[j] = &transposed[j * count];
  }
  const int64_t first = a.rows.first[b], end = first + length, begin = a.rows.start[b];
  for (int64_t p = first; p < end; p++) {
    for (int64_t j = 0; j < taps; j++) {
      const int64_t from = p - (taps - 1) + j;
      x[j] = from < 0 ? nullptr : from < first ? a.ring.f32(seat, from % Rc, c0) : a.x.f32(begin + (from - first), c0);
    }
    HWY_DYNAMIC_DISPATCH(ConvToken)(w.data(), x.data(), taps, count, a.out.f32(begin + (p - first), c0));
  }
  for (int64_t p = std::max(first, end - Rc); p < end; p++) {
    std::copy_n(a.x.f32(begin + (p - first), c0), count, a.ring.f32(seat, p % Rc, c0));
  }
}

}  // namespace

// Memory traffic: x and out once, the weight once a row; of each row's ring taps-1 inputs in, its last Rc inputs out.
void conv(const ConvArgs& args, Stream& stream) {
  check(args);
  const int64_t C = args.x.shape[1], parts = (C + kChannels - 1) / kChannels;
  pool_of(stream).parallel_for(args.rows.count * parts, [&](int64_t task) {
    const int64_t c0 = task % parts * kChannels;
    conv_channels(args, static_cast<int32_t>(task / parts), c0, std::min(kChannels, C - c0));
  });
}

}  // namespace deltaring::cpu
#endif
