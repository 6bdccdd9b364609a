#include <algorithm>
#include <cstring>
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

// `count` channels of a token as floats: where they lie, or widened into scratch.
const float* as_floats(const View<1>& token, int64_t c0, int64_t count, float* scratch) {
  if (token.dtype == DType::f32) return token.f32(c0);
  load_floats(token.data, token.dtype, c0, count, scratch);
  return scratch;
}

void zero(const View<1>& token, int64_t c0, int64_t count) {
  std::memset(token.address(c0), 0, static_cast<size_t>(count) * size_of(token.dtype));
}

// Channels [c0, c0 + count) of all taps, tap-major: where they lie, or in `transposed`.
std::vector<const float*> taps_of(const View<2>& weight, int64_t c0, int64_t count, std::vector<float>& transposed) {
  const int64_t taps = weight.shape[1];
  std::vector<const float*> w(taps);
  if (weight.stride[0] != 1) transposed.resize(taps * count);
  for (int64_t j = 0; j < taps; j++) {
    w[j] = weight.f32(c0, j);
    if (transposed.empty()) continue;
    for (int64_t c = 0; c < count; c++) transposed[j * count + c] = *weight.f32(c0 + c, j);
    w[j] = &transposed[j * count];
  }
  return w;
}

// Channels [c0, c0 + count) of row b: outputs first, then the ring, since outputs read what the ring still holds.
void conv_channels(const ConvArgs& a, int32_t b, int64_t c0, int64_t count) {
  const int64_t taps = a.weight.shape[1], Rc = a.ring.shape[1], length = a.rows.length(b), begin = a.rows.start[b];
  const int32_t seat = a.rows.seat[b];
  if (seat < 0) {
    for (int64_t i = 0; i < length; i++) zero(a.out[begin + i], c0, count);
    return;
  }
  std::vector<float> transposed;
  const std::vector<const float*> w = taps_of(a.weight, c0, count, transposed);
  const int64_t first = a.rows.first[b], end = first + length;
  std::vector<float> scratch((taps + 1) * count);  // widened inputs by position % taps, and an output
  std::vector<const float*> input(taps), x(taps);  // by position % taps, and in order
  const auto read = [&](int64_t p) {
    const View<1> token = p < first ? a.ring[seat][p % Rc] : a.x[begin + (p - first)];
    input[p % taps] = as_floats(token, c0, count, &scratch[p % taps * count]);
  };
  for (int64_t p = std::max<int64_t>(0, first - (taps - 1)); p < first; p++) read(p);
  for (int64_t p = first; p < end; p++) {
    read(p);
    for (int64_t j = 0; j < taps; j++) x[j] = p - (taps - 1) + j < 0 ? nullptr : input[(p + 1 + j) % taps];
    const View<1> to = a.out[begin + (p - first)];
    float* y = to.dtype == DType::f32 ? to.f32(c0) : &scratch[taps * count];
    HWY_DYNAMIC_DISPATCH(ConvToken)(w.data(), x.data(), taps, count, y);
    if (to.dtype != DType::f32) store_floats(to.data, to.dtype, c0, count, y);
  }
  for (int64_t p = std::max(first, end - Rc); p < end; p++) {
    const View<1> from = a.x[begin + (p - first)], to = a.ring[seat][p % Rc];
    if (from.dtype == to.dtype) {
      std::memcpy(to.address(c0), from.address(c0), static_cast<size_t>(count) * size_of(to.dtype));
    } else {
      load_floats(from.data, from.dtype, c0, count, to.f32(c0));
    }
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
