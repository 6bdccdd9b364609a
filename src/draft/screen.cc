#include "draft/screen.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace deltaring {

namespace {

constexpr float kMostCode = 127;
constexpr int64_t kBlock = 64;       // ids that are looked at together
constexpr int64_t kGathered = 1024;  // rows of an exact product

// What |x| may be for sums of K products with codes to stay in int32, a little less for the rounding of x.
float most_x(int64_t K) {
  const double limit = std::min<double>(32767, std::floor((0x1p31 - 1) / (kMostCode * static_cast<double>(K))));
  return static_cast<float>(std::max(limit - 1, 1.0));
}

// Sums of estimates and of how far they may be off, `count` from id `first` on.
void add_up(std::span<const Estimate> sum, int64_t first, int64_t count, float* value, float* error) {
  std::fill_n(value, count, 0.0f), std::fill_n(error, count, 0.0f);
  for (const Estimate& e : sum) {
    const float* of = e.value + first;
    const float* off = e.error + first;
    for (int64_t i = 0; i < count; i++) value[i] += e.unit * of[i], error[i] += e.slack * off[i];
  }
}

bool any_above(const float* x, int64_t count, float least) {
  int any = 0;
  for (int64_t i = 0; i < count; i++) any |= x[i] > least;
  return any != 0;
}

}  // namespace

std::vector<int32_t> contenders(std::span<const Estimate> sum, int64_t valid, size_t count) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  std::vector<float> best;     // the `count` largest lower bounds, largest first
  std::vector<float> highest;  // upper bound of each block of ids
  float value[kBlock], error[kBlock], lower[kBlock];
  for (int64_t first = 0; first < valid; first += kBlock) {
    const int64_t size = std::min(kBlock, valid - first);
    add_up(sum, first, size, value, error);
    float lanes[4] = {kLowest, kLowest, kLowest, kLowest};
    for (int64_t i = 0; i < size; i++) {
      lower[i] = value[i] - error[i];
      lanes[i % 4] = std::max(lanes[i % 4], value[i] + error[i]);
    }
    highest.push_back(std::max(std::max(lanes[0], lanes[1]), std::max(lanes[2], lanes[3])));
    if (best.size() == count && !any_above(lower, size, best.back())) continue;
    for (int64_t i = 0; i < size; i++) {
      if (best.size() == count && !(lower[i] > best.back())) continue;
      if (best.size() == count) best.pop_back();
      best.insert(std::upper_bound(best.begin(), best.end(), lower[i], std::greater<>()), lower[i]);
    }
  }
  std::vector<int32_t> ids;
  if (best.empty()) return ids;
  // Bounds and their sums are rounded too.
  const float least = best.size() < count ? kLowest : best.back() - std::abs(best.back()) * 0x1p-20f;
  for (int64_t first = 0; first < valid; first += kBlock) {
    if (highest[static_cast<size_t>(first / kBlock)] < least) continue;
    const int64_t size = std::min(kBlock, valid - first);
    add_up(sum, first, size, value, error);
    for (int64_t i = 0; i < size; i++) {
      if (value[i] + error[i] >= least) ids.push_back(static_cast<int32_t>(first + i));
    }
  }
  return ids;
}

int32_t likeliest(std::span<const Estimate> sum, int64_t valid) {
  float value[kBlock], error[kBlock], best = -std::numeric_limits<float>::infinity();
  int32_t id = 0;
  for (int64_t first = 0; first < valid; first += kBlock) {
    const int64_t size = std::min(kBlock, valid - first);
    add_up(sum, first, size, value, error);
    if (!any_above(value, size, best)) continue;
    for (int64_t i = 0; i < size; i++) {
      if (value[i] > best) best = value[i], id = static_cast<int32_t>(first + i);
    }
  }
  return id;
}

int64_t Screen::planned_bytes(int64_t rows, int64_t columns) {
  if (!worth(rows, columns)) return 0;
  return static_cast<int64_t>(Arena::aligned(static_cast<size_t>(rows * columns))) +
         2 * rows * static_cast<int64_t>(sizeof(float));
}

Screen::Screen(const View<2>& matrix)
    : matrix_(matrix),
      arena_(Arena::aligned(static_cast<size_t>(matrix.shape[0] * matrix.shape[1])), "whole numbers of a head"),
      scale_(static_cast<size_t>(matrix.shape[0])),
      error_(static_cast<size_t>(matrix.shape[0])) {
  const auto [N, K] = matrix.shape;
  codes_ = static_cast<int8_t*>(arena_.take(static_cast<size_t>(N * K)));
  std::vector<float> w(static_cast<size_t>(K));
  for (int64_t n = 0; n < N; n++) {
    float most = 0;
    bool finite = true;
    for (int64_t k = 0; k < K; k++) {
      w[k] = load_as_float(matrix.data, matrix.dtype, matrix.offset(n, k));
      most = std::max(most, std::abs(w[k]));
      finite &= std::isfinite(w[k]);
    }
    int8_t* codes = codes_ + n * K;
    if (!finite) {
      std::fill_n(codes, K, int8_t{0});
      error_[n] = std::numeric_limits<float>::infinity();
      continue;
    }
    scale_[n] = error_[n] = std::max(most / kMostCode, std::numeric_limits<float>::min());
    for (int64_t k = 0; k < K; k++) {
      codes[k] = static_cast<int8_t>(std::clamp(std::nearbyint(w[k] / scale_[n]), -kMostCode, kMostCode));
    }
  }
}

bool Screen::estimate(Decoder& decoder, View<2> x, View<2> out) {
  const auto [M, K] = x.shape;
  const double terms = static_cast<double>(K), limit = most_x(K);
  x_.resize(static_cast<size_t>(M * K));
  unit_.resize(static_cast<size_t>(M)), slack_.resize(static_cast<size_t>(M));
  for (int64_t m = 0; m < M; m++) {
    double most = 0, sum = 0;
    for (int64_t k = 0; k < K; k++)
      most = std::max(most, std::abs(double{*x.f32(m, k)})), sum += std::abs(*x.f32(m, k));
    if (!std::isfinite(sum)) return false;
    const double step = std::max(most / limit, double{std::numeric_limits<float>::min()});
    for (int64_t k = 0; k < K; k++) {
      x_[m * K + k] = static_cast<int16_t>(std::lrint(*x.f32(m, k) / step));
    }
    unit_[m] = static_cast<float>(step);
    // In units of a row's scale: weights are half a code off and a little for the rounding of w / scale, x half a step,
    // and f32 sums of K products of up to 127 codes their rounding, in the exact product as in this one.
    slack_[m] = static_cast<float>(
        (sum * (0.5 + 2e-5 + kMostCode * (terms + 8) * 0x1p-23) + 0.5 * step * kMostCode * terms) * 1.001);
    slack_[m] = std::max(slack_[m], std::numeric_limits<float>::min());
  }
  decoder.ops().linear_i8(
      {.M = M, .N = matrix_.shape[0], .K = K, .x = x_.data(), .w = codes_, .scale = scale_.data(), .out = out},
      decoder.stream());
  return true;
}

void Screen::exact(Decoder& decoder, View<2> x, std::span<const int32_t> ids, std::span<float> out, bool accumulate) {
  const int64_t K = matrix_.shape[1];
  const size_t bytes = static_cast<size_t>(K) * size_of(matrix_.dtype);
  while (!ids.empty()) {
    const size_t count = std::min<size_t>(ids.size(), kGathered);
    gathered_.resize(count * bytes);
    for (size_t i = 0; i < count; i++) {
      std::memcpy(gathered_.data() + i * bytes, matrix_.address(matrix_.offset(ids[i], 0)), bytes);
    }
    const auto rows = static_cast<int64_t>(count);
    decoder.linear(x, dense<2>(gathered_.data(), matrix_.dtype, {rows, K}), dense<2>(out.data(), DType::f32, {1, rows}),
                   accumulate);
    ids = ids.subspan(count), out = out.subspan(count);
  }
}

int32_t Screen::best(Decoder& decoder, View<2> x, std::span<const int32_t> ids) {
  std::vector<float> products(ids.size());
  exact(decoder, x, ids, products);
  return ids[index_of_largest(decoder, products)];
}

int32_t index_of_largest(Decoder& decoder, std::span<float> logits) {
  int32_t best = 0;
  const auto size = static_cast<int64_t>(logits.size());
  decoder.ops().argmax({.logits = dense<2>(logits.data(), DType::f32, {1, size}), .valid = size, .out = &best},
                       decoder.stream());
  return std::max(best, 0);
}

}  // namespace deltaring
